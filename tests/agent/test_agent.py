"""`pulsetrain agent` as its users start it, with real gloo ranks, and a hub that does what the test says."""

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from pulsetrain.faults import outside
from pulsetrain.protocol.messages import (
    DumpStacks,
    FirstStep,
    Heartbeat,
    Hello,
    HostStore,
    Leave,
    Leaving,
    RankExit,
    SelfCheck,
    Start,
    Stop,
)
from tests.agent.fakehub import TOKEN, FakeHub
from tests.agent.real_processes import TRAIN, alive, parent, until, with_environment

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
MARK = "PULSETRAIN_TEST_MARK"


class Node:
    """One agent process; everything it starts carries a mark in its environment."""

    def __init__(self, hub, folder, *, steps, token=TOKEN, logs=None):
        self.hub, self.mark = hub, uuid.uuid4().hex
        script = folder / "train.py"
        script.write_text(TRAIN)
        self.logs = logs or folder / "logs"
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pulsetrain.cli", "agent", "--hub", hub.url, "--token", token),
                *("--job", "job", "--node", "a", "--nproc-per-node", "2", "--log-dir", str(self.logs)),
                *(str(script), str(steps)),
            ],
            env={**os.environ, MARK: self.mark, "PULSETRAIN_DATA": str(folder / "data")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def launch(self, attempt=0):
        """Start an attempt and wait for its first step; its pids by rank."""
        self.hub.wait(Hello)
        store = self.hub.ask("a", HostStore, job="job")
        reply = self.hub.start("a", store, attempt=attempt)
        assert reply.error == ""
        self.hub.wait(FirstStep, lambda m: m.attempt == attempt)
        return {rank.rank: rank.pid for rank in self.beat(lambda b: b.attempt == attempt).ranks}

    def beat(self, wanted, timeout_s=100.0):
        """The next heartbeat that fits."""
        return self.hub.wait(Heartbeat, wanted, timeout_s, skip=len(self.hub.received))

    def left_behind(self):
        return with_environment(MARK, self.mark)


@pytest.fixture
def hub():
    hub = FakeHub()
    yield hub
    hub.down()


@pytest.fixture
def node(hub, tmp_path):
    nodes = []

    def node(steps=2000, **options):
        nodes.append(Node(hub, tmp_path, steps=steps, **options))
        return nodes[-1]

    yield node
    for each in nodes:
        each.process.kill()
        each.process.communicate()
        assert until(lambda each=each: not each.left_behind())


def test_a_node_trains_fails_is_relaunched_and_finishes(hub, node):
    a = node(steps=200)
    assert hub.wait(Hello).attempt == -1
    pids = a.launch()
    os.kill(pids[1], signal.SIGKILL)
    ended = hub.wait(RankExit)
    assert (ended.rank, ended.pid, ended.code, ended.attempt) == (1, pids[1], -signal.SIGKILL, 0)

    assert hub.ask("a", Stop, reason="rank 1 died").error == ""
    assert not any(alive(pid) for pid in pids.values())
    assert hub.ask("a", SelfCheck, seconds=0.1).data["ok"] is True
    assert a.launch(attempt=1).keys() == {0, 1}
    for rank in (0, 1):
        hub.wait(RankExit, lambda m, rank=rank: m.attempt == 1 and m.rank == rank and m.code == 0)
    assert (a.logs / "attempt_1" / "rank_0.out").read_text() == "rank 0 attempt 1\n"

    assert hub.ask("a", Leave, reason="job finished").error == ""
    out, err = a.process.communicate(timeout=60)
    assert a.process.returncode == 0
    assert sorted(line for line in out.splitlines() if "attempt 1" in line) == [
        "[0] rank 0 attempt 1",
        "[1] rank 1 attempt 1",
    ]
    assert err.splitlines()[-1] == "pulsetrain: job finished"
    assert until(lambda: not a.left_behind())


def title(pid):
    """The command line that ps shows."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode()


def test_ps_shows_what_each_process_is_and_ranks_are_still_found(hub, node):
    a = node()
    pids = a.launch()
    assert [title(pids[rank]) for rank in (0, 1)] == [f"pulsetrain: rank {r} of job job" for r in (0, 1)]
    assert title(parent(pids[0])) == "pulsetrain: zygote of node a"
    assert title(a.process.pid) == "pulsetrain: agent of node a, job job"
    assert outside.ranks_below(a.process.pid) == pids


def test_a_stopped_rank_stays_readable(hub, node):
    pids = node().launch()
    os.kill(pids[1], signal.SIGSTOP)
    beat = hub.wait(Heartbeat, lambda b: any(r.state == "stopped" for r in b.ranks))
    stopped, waiting = (next(r for r in beat.ranks if r.rank == rank) for rank in (1, 0))
    assert stopped.state == "stopped"
    assert stopped.last_step >= 0
    beat = hub.wait(Heartbeat, lambda b: any(r.rank == 0 and r.progress_age_ns > 1e9 for r in b.ranks))
    waiting = next(r for r in beat.ranks if r.rank == 0)
    assert waiting.groups[0].op == "all_reduce"
    read = hub.ask("a", DumpStacks).data
    assert read["blind"] == {}
    assert {r for s in read["stacks"] if s["thread"] == "MainThread" for r in s["ranks"]} == {0, 1}
    assert any("all_reduce" in f for s in read["stacks"] if 0 in s["ranks"] for f in s["frames"])
    assert hub.ask("a", Stop, reason="hang", grace_s=1.0).error == ""
    assert not any(alive(pid) for pid in pids.values())


def test_a_hub_that_goes_away_and_comes_back_changes_nothing_for_the_ranks(hub, node):
    a = node()
    pids = a.launch()
    before = a.beat(lambda b: True).ranks[0].last_step
    hub.down()
    hub.received.clear()
    assert not until(lambda: not all(alive(pid) for pid in pids.values()), 1.0)
    hub.up()
    hello = hub.wait(Hello)
    assert (hello.attempt, hello.node_rank, hello.ranks) == (0, 0, (0, 1))
    after = a.beat(lambda b: b.ranks[0].last_step > before + 10)
    assert {rank.rank: rank.pid for rank in after.ranks} == pids


def test_a_full_disk_leaves_training_undisturbed(hub, node, tmp_path):
    disk = tmp_path / "data"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=False)
    if mounted.returncode:
        pytest.skip("may not mount a small disk")
    try:
        a = node(logs=disk / "logs")
        hub.wait(Hello)
        with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as ballast:
            while True:
                ballast.write(b"x" * 4096)
        pids = a.launch()
        beat = a.beat(lambda b: b.gauges["dropped_rows"] > 0 and b.ranks[0].last_step > 20)
        assert {rank.rank: rank.pid for rank in beat.ranks} == pids
        a.process.kill()
        a.process.wait()
        assert until(lambda: not a.left_behind())
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_killing_the_agent_leaves_nothing(hub, node):
    a = node()
    pids = a.launch()
    assert len(a.left_behind()) >= 5  # agent, zygote, store, two ranks
    a.process.kill()
    a.process.wait()
    assert until(lambda: not a.left_behind() and not any(alive(pid) for pid in pids.values()))


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_node_in_order(hub, node, signum):
    a = node()
    a.launch()
    for _ in range(2 if signum == signal.SIGHUP else 1):  # a shell and the kernel both send it
        a.process.send_signal(signum)
    _, err = a.process.communicate(timeout=60)
    assert a.process.returncode == 128 + signum
    assert err.splitlines()[-1] == f"pulsetrain: ended by {signum.name}"
    assert hub.wait(Leaving).signal == signum.name
    assert until(lambda: not a.left_behind())


def test_a_wrong_token_is_one_line_and_status_2(hub, node):
    a = node(token="guessed")
    _, err = a.process.communicate(timeout=60)
    assert a.process.returncode == 2
    assert "refuses the token" in err.splitlines()[-1]
    assert hub.count(Hello) == 0


def test_a_zygote_that_dies_takes_its_ranks_along_and_is_replaced(hub, node):
    a = node()
    pids = a.launch()
    zygote = parent(pids[0])
    os.kill(zygote, signal.SIGKILL)
    assert {hub.wait(RankExit, lambda m, r=r: m.rank == r).code for r in (0, 1)} == {-signal.SIGKILL}
    assert hub.ask("a", Stop, reason="crash").error == ""
    assert a.launch(attempt=1).keys() == {0, 1}


def test_a_launch_that_is_stopped_meanwhile_gives_up(hub, node):
    a = node()
    hub.wait(Hello)
    reply = hub.ask("a", Start, job="job", attempt=0, node_rank=7, world=(), store_address="h", store_port=1)
    assert "node_rank" in reply.error or reply.error
    assert a.beat(lambda b: True).attempt == -1
