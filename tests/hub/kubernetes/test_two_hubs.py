"""Two real hubs that keep their state in a ConfigMap: one leads, and the other one takes over."""

import signal

import pytest

from tests.agent.real_processes import until
from tests.hub.kubernetes.state_of import entries
from tests.hub.test_two_hubs import Hub, leads_after

pytestmark = [pytest.mark.integration, pytest.mark.alone, pytest.mark.timeout(300)]


@pytest.fixture
def hubs(tmp_path, server, monkeypatch):
    monkeypatch.setenv("PULSETRAIN_KUBERNETES_API", server.url)
    hubs = [Hub(tmp_path / name, "kubernetes://train") for name in "ab"]
    try:
        roles = ["leader", "waiting"]
        assert until(lambda: sorted(str(h.role()) for h in hubs) == roles, 120), hubs[0].log.read_text()
        leader, other = sorted(hubs, key=Hub.role)
        yield leader, other
    finally:
        for hub in hubs:
            hub.process.send_signal(signal.SIGCONT)
            hub.process.terminate()
            hub.process.wait(60)


def test_a_leader_is_killed_and_the_other_hub_leads(hubs):
    leader, other = hubs
    leader.process.kill()
    assert leads_after(other) < 10


def test_a_leader_that_ends_hands_over_at_once_and_leaves_no_lease(hubs, cluster):
    leader, other = hubs
    leader.process.terminate()
    assert leader.process.wait(60) == 0
    assert leads_after(other) < 4
    assert len(cluster.all("leases")) == 1


def test_a_leader_that_was_stopped_and_goes_on_ends(hubs, cluster):
    leader, other = hubs
    leader.process.send_signal(signal.SIGSTOP)
    assert leads_after(other) < 10
    leader.process.send_signal(signal.SIGCONT)
    assert leader.process.wait(30) == 1
    assert "does not lead any more" in leader.log.read_text()
    assert entries(cluster)["leader"].startswith(other.url)
