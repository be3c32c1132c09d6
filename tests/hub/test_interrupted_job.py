"""A real job that its user ends with Ctrl-C is over: no node of it is lost, and nobody is alerted."""

import signal

import pytest

from pulsetrain.protocol.client import HubClient, find_hub
from tests.agent.real_processes import until
from tests.hub.test_real_job import Site, opened

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture
def site(tmp_path):
    with opened(Site(tmp_path)) as site:
        yield site


def test_ctrl_c_on_every_node_ends_the_job_without_an_alert(site):
    site.start_nodes(5000)
    site.reach(10)
    for node in site.nodes:
        node.send_signal(signal.SIGINT)
    assert until(lambda: site.ask()["state"] == "failed", 30), site.ask()
    for node in site.nodes:
        node.wait(timeout=60)
    job = site.ask()
    assert job["failure"] == "ended by SIGINT"
    assert job["verdict"]["state"] == "ended"
    assert job["verdict"]["sentence"].startswith("Ended by SIGINT after step ")
    assert {node["state"] for node in job["nodes"]} == {"left"}
    assert (job["findings"], job["recoveries"]) == ([], [])
    client = HubClient(find_hub(environ=site.env))
    assert [a for a in client.alerts() if a["kind"] in ("node_lost", "crash", "hang")] == []
    loops = client.status()["loops"]
    assert {row["loop"] for row in loops} >= {"controller", "live watch", "store analysis", "notifications"}
    assert [row for row in loops if row["failures"]] == []
