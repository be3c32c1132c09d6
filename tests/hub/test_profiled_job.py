"""A real job is profiled while it trains, and trains on."""

import gzip
import json

import pytest

from tests.agent.real_processes import until
from tests.hub.test_real_job import STEPS, Site

pytestmark = [pytest.mark.paired, pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path)
    site.start_hub()
    yield site
    site.close()


def test_both_ranks_are_profiled_in_the_same_steps_and_the_job_ends_as_if_nobody_had_looked(site, tmp_path):
    site.start_nodes()
    site.reach(20)
    file = tmp_path / "p.json.gz"
    asked = site.spawn("profile", "j", "--steps", "4", "--ranks", "0,1", "-o", str(file))
    assert asked.wait(120) == 0, (tmp_path / "log").read_text()[-2000:]
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    reduced = [e for e in events if e.get("name") == "c10d::allreduce_"]
    assert {e["pid"] // 1000 for e in reduced} == {0, 1}
    assert {rank: sum(e["pid"] // 1000 == rank for e in reduced) for rank in (0, 1)} == {0: 4, 1: 4}
    assert site.ask()["attempt"] == 0
    assert [node.wait(timeout=180) for node in site.nodes] == [0, 0]
    assert until(lambda: max(step for _, step in site.stored_steps()) == STEPS - 1, 60)
