"""Who may connect to an agent, and what it answers."""

import pytest

from pulsetrain.checkpoint.peers.client import PeerClient
from pulsetrain.checkpoint.service import CheckpointService, CheckpointServiceConfig
from pulsetrain.core.errors import AuthError, Unavailable

pytestmark = pytest.mark.integration


def test_a_wrong_token_or_job_gets_nothing(cluster):
    c = cluster(1)
    port = c.services["n0"].peer_port
    for token, job in (("wrong", "j"), ("secret", "other"), ("", "j")):
        with pytest.raises(AuthError):
            PeerClient(address="127.0.0.1", port=port, token=token, job=job, node="x")


def test_a_port_in_use_is_an_error(cluster):
    c = cluster(1)
    taken = CheckpointServiceConfig(token="t", port=c.services["n0"].peer_port)
    with pytest.raises(Unavailable, match="checkpoint port"):
        CheckpointService(taken, job="j", node="x", address="127.0.0.1")
