"""Real jobs lose a rank or a node. The processes of all other ranks stay, and the parameters are the same."""

import itertools
import json
import os
import random
import re
import signal
from collections import namedtuple
from functools import cache

import pytest

from pulsetrain.faults import outside
from pulsetrain.protocol.client import find_hub
from pulsetrain.stream.store.clickhouse import open_store
from tests.agent.real_processes import alive, until
from tests.agent.survivor_job import reference
from tests.hub.test_moved_job import Moved
from tests.repository import ROOT

pytestmark = [pytest.mark.paired, pytest.mark.integration, pytest.mark.timeout(600)]

STEPS = 500
Began = namedtuple("Began", "attempt pid first world at_s")


class Surviving(Moved):
    """A hub, and nodes of a job that says when each rank began which attempt."""

    def start(self, *names, nnodes="1", ranks=3, more=()):
        for name in names:
            self.nodes.append(
                self.spawn(
                    *("run", "--job", "j", "--node", name, "--nnodes", nnodes),
                    *("--nproc-per-node", str(ranks)),
                    *("--log-dir", str(self.folder / name), str(ROOT / "tests/agent/survivor_job.py")),
                    *("--steps", str(STEPS), "--out", str(self.folder / "out"), *more),
                )
            )
        return self.nodes[-1]

    def start_gpt(self, out):
        """The example on eight ranks, as a job named after the file that it writes."""
        job = f"gpt{out.name.rpartition('-')[2]}"
        command = ("run", "--job", job, "--node", "a", "--nproc-per-node", "8")
        script = str(ROOT / "tests/agent/survivor_gpt.py")
        shape = ("--layers", "2", "--dim", "32", "--batch", "8", "--seq", "16", "--steps", "60")
        logs = ("--log-dir", str(self.folder / job))
        self.nodes.append(self.spawn(*command, *logs, script, *shape, "--params-hash-out", str(out)))
        return self.nodes[-1]

    def reach_in(self, job, step, attempt):
        """Wait until an attempt of a job has done a step. One before it may have come further."""
        where = f"job = '{job}' AND step >= {step} AND attempt = {attempt}"
        assert until(lambda: self.rows(f"SELECT 1 FROM steps WHERE {where}"), 90)

    @staticmethod
    def ranks_after(job, before):
        """The processes of all ranks once they are not the same as before."""

        def changed():
            now = outside.ranks_below(job.pid)
            return now if len(now) == len(before) and now != before else None

        assert until(changed, 60)
        return changed()

    def kill(self, agent):
        """Kill a node's agent. Its ranks end with it."""
        agent.kill()
        agent.wait(60)
        self.nodes.remove(agent)

    def began(self, rank):
        """When the rank began which attempt, in which process."""
        file = self.folder / "out" / f"rank-{rank}.log"
        lines = file.read_text().splitlines() if file.exists() else []
        return [
            Began(*(float(word) if "." in word else int(word) for word in line.split())) for line in lines
        ]

    def pids(self, world, attempt=0):
        """The process of each rank in an attempt, once all have begun it."""

        def of(rank):
            return [b.pid for b in self.began(rank) if b.attempt == attempt]

        assert until(lambda: all(of(rank) for rank in range(world)), 90), self.ask()
        return {rank: of(rank)[0] for rank in range(world)}

    def kept(self, attempt):
        """Ranks that were kept for an attempt, and why the others were not."""
        query = f"SELECT detail FROM events WHERE kind = 'survivors' AND attempt = {attempt}"
        assert until(lambda: self.rows(query), 60)
        event = json.loads(self.rows(query)[0]["detail"])
        return event["kept"], event["started_anew"]

    def digests(self):
        for node in self.nodes:
            assert node.wait(timeout=180) == 0
        said = "".join(p.read_text() for p in self.folder.rglob("*.out"))
        return set(re.findall(r"weights \d (\w{64})", said))

    def rows(self, query):
        address = find_hub(environ=self.env)
        store = open_store(address.url, token=address.token)
        try:
            return store.query(query, {}).to_pylist()
        finally:
            store.close()

    def steps_by_attempt(self):
        """Steps of rank 0 that the store has, by attempt."""
        rows = self.rows("SELECT attempt, step FROM steps WHERE rank = 0 ORDER BY attempt, step")
        return {a: [r["step"] for r in of] for a, of in itertools.groupby(rows, lambda r: r["attempt"])}


@cache
def undisturbed(world):
    return {reference(STEPS, lambda _: world)}


@pytest.fixture
def site(tmp_path):
    site = Surviving(tmp_path / "site")
    yield site
    site.close()


def test_only_the_rank_that_was_killed_gets_a_new_process(site):
    generator = random.Random(3)
    site.start("a", ranks=4)
    before = site.pids(4)
    for attempt in (1, 2, 3):
        site.reach(40 * attempt + generator.randrange(20))
        victim = generator.randrange(4)
        os.kill(before[victim], signal.SIGKILL)
        after = site.pids(4, attempt)
        assert {rank for rank in range(4) if before[rank] != after[rank]} == {victim}
        assert site.kept(attempt) == ([r for r in range(4) if r != victim], {})
        before = after
        site.reach(max(b.first for b in site.began(0)) + 2)
    assert site.digests() == undisturbed(4)
    recoveries = site.recoveries()
    assert [r["resumed_by"] for r in recoveries] == ["checkpointer"] * 3
    assert max(r["lost_steps"] for r in recoveries) <= 1


def test_three_dimensions_of_parallelism_go_on_in_their_processes(site):
    generator, ends = random.Random(11), []
    for times in (0, 2):
        out = site.folder / f"hash-{times}"
        job = site.start_gpt(out)
        for attempt in range(1, times + 1):
            site.reach_in(f"gpt{times}", 15 * attempt + generator.randrange(8), attempt - 1)
            before = outside.ranks_below(job.pid)
            victim = generator.randrange(8)
            os.kill(before[victim], signal.SIGKILL)
            after = site.ranks_after(job, before)
            assert {rank for rank in range(8) if before[rank] != after[rank]} == {victim}
        assert job.wait(timeout=240) == 0
        site.nodes.remove(job)
        ends.append(out.read_text())
    assert ends[0] == ends[1]


def test_a_node_that_is_killed_is_replaced_and_the_others_processes_stay(site):
    site.start("a", nnodes="3", ranks=1)
    site.start("b", nnodes="3", ranks=1)
    lost = site.start("c", nnodes="3", ranks=1)
    before = site.pids(3)
    names = {n["node_rank"]: n["node"] for n in site.ask()["nodes"]}
    gone = next(rank for rank, name in names.items() if name == "c")
    site.start("z", nnodes="3", ranks=1)
    assert until(lambda: len(site.ask()["nodes"]) == 4, 60)
    site.reach(40)
    site.kill(lost)
    after = site.pids(3, 1)
    assert {rank for rank in range(3) if before[rank] != after[rank]} == {gone}
    assert site.kept(1) == ([rank for rank in range(3) if rank != gone], {})
    assert site.digests() == undisturbed(3)


@pytest.mark.long
def test_a_smaller_world_goes_on_in_the_processes_that_are_left(site):
    for name in "abc":
        node = site.start(name, nnodes="2:3", ranks=1)
        if name == "a":
            lost = node
    before = site.pids(3)
    site.reach(40)
    site.kill(lost)
    after = site.pids(2, 1)
    assert set(after.values()) < set(before.values())
    [first] = {site.began(rank)[-1].first for rank in (0, 1)}
    assert site.digests() == {reference(STEPS, lambda step: 3 if step < first else 2)}


@pytest.mark.long
def test_a_survivor_that_does_not_wake_is_killed_and_the_job_goes_on(site):
    site.start("a", ranks=3)
    before = site.pids(3)
    site.reach(40)
    os.kill(before[2], signal.SIGSTOP)
    os.kill(before[1], signal.SIGKILL)
    after = site.pids(3, 1)
    assert [rank for rank in range(3) if before[rank] != after[rank]] == [1, 2]
    kept, anew = site.kept(1)
    assert kept == [0]
    assert re.match(r"it did not give up its attempt in 3 s", anew["2"])
    assert not alive(before[2])
    assert site.digests() == undisturbed(3)


@pytest.mark.long
def test_a_survivor_that_sleeps_is_woken(site):
    site.start("a", ranks=3, more=("--at", "60", "--sleeps", "2"))
    before = site.pids(3)
    assert until(lambda: (site.folder / "out" / "misbehaved-2").exists(), 60)
    os.kill(before[1], signal.SIGKILL)
    after = site.pids(3, 1)
    assert [rank for rank in range(3) if before[rank] != after[rank]] == [1]
    assert site.digests() == undisturbed(3)


@pytest.mark.long
def test_a_rank_with_an_exception_of_its_own_starts_anew(site):
    site.start("a", ranks=3, more=("--at", "60", "--raises", "1"))
    before, after = site.pids(3), site.pids(3, 1)
    assert [rank for rank in range(3) if before[rank] != after[rank]] == [1]
    assert site.kept(1)[0] == [0, 2]
    assert site.digests() == undisturbed(3)


def test_a_script_without_it_gets_new_processes_and_the_event_says_why(site):
    site.start("a", ranks=2, more=("--plain",))
    before = site.pids(2)
    site.reach(40)
    os.kill(before[1], signal.SIGKILL)
    after = site.pids(2, 1)
    assert not set(before.values()) & set(after.values())
    assert site.kept(1) == ([], {"0": "its script does not use pulsetrain.restartable"})
    assert site.digests() == undisturbed(2)


@pytest.mark.long
def test_records_of_both_attempts_are_told_apart(site):
    site.start("a", ranks=2)
    before = site.pids(2)
    site.reach(40)
    os.kill(before[1], signal.SIGKILL)
    site.pids(2, 1)
    assert site.digests() == undisturbed(2)
    first = site.began(0)[-1].first
    steps = site.steps_by_attempt()
    assert steps[1] == list(range(first, STEPS))
    assert max(steps[0]) <= first + 1
    assert sorted(itertools.chain(steps[0][:first], steps[1])) == list(range(STEPS))
