"""Whether a node reaches the store of its attempt."""

import socket

import pytest

from pulsetrain.agent.store_check import why_unreachable
from pulsetrain.protocol.messages import Start


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def start(port, *, check=True):
    return Start(
        id=1, job="j", attempt=0, node_rank=0, world=(), store_address="127.0.0.1", store_port=port,
        check_store=check,
    )  # fmt: skip


def test_a_store_that_listens_is_reached(listener):
    assert why_unreachable(start(listener.getsockname()[1])) == ""


def test_one_that_does_not_is_named_with_the_reason(listener):
    port = listener.getsockname()[1]
    listener.close()
    why = why_unreachable(start(port))
    assert why.startswith(f"127.0.0.1:{port}: ")
    assert "refused" in why
    assert why_unreachable(start(port, check=False)) == ""
