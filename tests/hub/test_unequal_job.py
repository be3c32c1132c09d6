"""A real tensor-parallel job loses a rank without a standby, and trains on with a replica of three."""

import itertools
from collections import namedtuple

import numpy as np
import pytest

from tests.agent.real_processes import until
from tests.agent.unequal_job import reference, replica_of
from tests.hub.test_survivors import Surviving
from tests.repository import ROOT

pytestmark = [pytest.mark.paired, pytest.mark.integration, pytest.mark.timeout(900)]

STEPS, TOLERANCE = 300, 1e-12  # float64
Began = namedtuple("Began", "attempt pid first degrees at_s")


class Unequal(Surviving):
    """Nodes of one rank each. Four form a replica, and three can go on."""

    def start(self, *names):
        for name in names:
            self.nodes.append(
                self.spawn(
                    *("run", "--job", "j", "--node", name, "--nnodes", "4:8", "--nproc-per-node", "1"),
                    *("--node-unit", "4", "--node-unit-min", "3", "--log-dir", str(self.folder / name)),
                    *(str(ROOT / "tests/agent/unequal_job.py"), "--steps", str(STEPS), "--pause", "0.05"),
                    *("--out", str(self.folder / "out")),
                )
            )
        return self.nodes[-1]

    def began(self, rank):
        file = self.folder / "out" / f"rank-{rank}.log"
        words = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return [Began(int(w[0]), int(w[1]), int(w[2]), w[3], float(w[4])) for w in words]

    def error(self, degrees, number):
        """The largest difference of a replica's parameters from those that nobody split."""
        ended = replica_of(self.folder / "out", degrees, number)
        return max(np.abs(ended[name] - values).max() for name, values in reference(STEPS).items())

    def finishes(self):
        for node in self.nodes:
            assert node.wait(timeout=300) == 0


@pytest.fixture
def site(tmp_path):
    site = Unequal(tmp_path / "site")
    yield site
    site.close()


def test_a_replica_that_lost_a_rank_goes_on_with_three_and_nobody_else_is_started_anew(site):
    site.start(*"abcdefgh")
    before = site.pids(8)
    names = {n["node_rank"]: n["node"] for n in site.ask()["nodes"]}
    lost = next(rank for rank, name in names.items() if name == "b")
    site.reach(40)
    site.kill(site.nodes[1])
    after = site.pids(7, 1)
    assert sorted(after.values()) == sorted(pid for rank, pid in before.items() if rank != lost)
    assert site.kept(1)[0] == sorted(set(range(7)))
    last = [site.began(rank)[-1] for rank in range(7)]
    assert {began.degrees for began in last} == {"4,3"}
    assert {began.first for began in last} == {last[0].first}
    assert STEPS - last[0].first >= 50
    [shrunk] = site.events("shrink")
    assert (shrunk["units"], shrunk["worth_replicas"], shrunk["whole_replicas"]) == ([4, 3], 1.75, 1.0)
    assert until(lambda: len(site.events("resharded")) == 7, 60)
    assert all(event["storage_bytes"] == 0 for event in site.events("resharded"))
    site.finishes()
    assert max(site.error((4, 3), number) for number in (0, 1)) < TOLERANCE
    assert site.recoveries()[-1]["lost_steps"] <= 2


@pytest.mark.long
def test_it_goes_back_to_its_full_degree_when_the_node_returns(site):
    site.start(*"abcdefgh")
    site.pids(8)
    site.reach(30)
    site.kill(site.nodes[6])
    site.pids(7, 1)
    site.start("g")
    assert until(lambda: all(b.degrees == "4,4" for b in itertools.chain(site.began(0)[-1:])), 120)
    site.finishes()
    assert {site.began(rank)[-1].degrees for rank in range(8)} == {"4,4"}
    assert max(site.error((4, 4), number) for number in (0, 1)) < TOLERANCE


@pytest.mark.long
def test_both_replicas_may_lose_one(site):
    site.start(*"abcdefgh")
    before = site.pids(8)
    site.reach(30)
    for attempt, lost in ((1, "h"), (2, "a")):
        site.kill(next(node for node in site.nodes if lost in node.args))
        site.pids(8 - attempt, attempt)
        site.reach(max(b.first for b in site.began(0)) + 10)
    after = site.pids(6, 2)
    assert set(after.values()) < set(before.values())
    assert {site.began(rank)[-1].degrees for rank in range(6)} == {"3,3"}
    site.finishes()
    assert max(site.error((3, 3), number) for number in (0, 1)) < TOLERANCE
