"""The ranks of a node: what each is started with, and how they end."""

import dataclasses
import signal

import pytest

from pulsetrain.agent.processes.ranks import NodeIdentity, Program, Ranks, rank_environment
from pulsetrain.core.errors import Unavailable, UsageError
from pulsetrain.protocol.messages import Start, WorldNode

WORLD = tuple(
    WorldNode(node=f"n{r}", node_rank=r, address=f"127.0.0.{r + 1}", peer_port=0, nproc=2) for r in range(4)
)
START = Start(
    id=1, job="gpt", attempt=5, node_rank=3, world=WORLD, store_address="127.0.0.1", store_port=1234
)
IDENTITY = NodeIdentity(job="gpt", node="n3", address="127.0.0.4", nproc_per_node=2, max_restarts=9)


def test_a_rank_sees_what_torchrun_would_tell_it():
    env = rank_environment(START, IDENTITY, local_rank=1)
    expected = {
        "RANK": "7",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "8",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "3",
        "GROUP_WORLD_SIZE": "4",
        "ROLE_RANK": "7",
        "ROLE_WORLD_SIZE": "8",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1234",
        "TORCHELASTIC_RUN_ID": "gpt",
        "TORCHELASTIC_RESTART_COUNT": "5",
        "TORCHELASTIC_MAX_RESTARTS": "9",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    assert expected.items() <= env.items()


def test_a_rank_of_a_world_that_was_told_in_part_knows_its_whole_size():
    env = rank_environment(dataclasses.replace(START, world_nodes=5000), IDENTITY, local_rank=1)
    assert (env["WORLD_SIZE"], env["ROLE_WORLD_SIZE"], env["GROUP_WORLD_SIZE"]) == ("10000", "10000", "5000")


@pytest.mark.parametrize("step", [-1, 41])
def test_a_rank_knows_the_step_to_restore(step):
    env = rank_environment(dataclasses.replace(START, restore_step=step), IDENTITY, 0)
    assert env["PULSETRAIN_RESTORE_STEP"] == str(step)
    assert (env["PULSETRAIN_JOB"], env["PULSETRAIN_NODE"], env["PULSETRAIN_ATTEMPT"]) == ("gpt", "n3", "5")


class Zygote:
    """Forks nothing; `refuse` says which local rank cannot be forked."""

    def __init__(self, refuse=None):
        self.refuse, self.spawned, self.exits, self.signals = refuse, [], [], []

    def spawn(self, process, on_exit):
        if len(self.spawned) == self.refuse:
            raise Unavailable("fork: no memory")
        self.spawned.append(process)
        self.exits.append(on_exit)
        return 2**22 + len(self.spawned)

    def signal(self, pid, signum):
        self.signals.append((pid - 2**22 - 1, signum))
        if signum == signal.SIGKILL:
            self.exits[pid - 2**22 - 1](-signum)


@pytest.fixture
def node(tmp_path):
    ended = []
    ranks = Ranks(IDENTITY, Program(argv=("train.py", "-v")), tmp_path, ended.append, ring_slots=64)
    ranks.ended = ended
    yield ranks
    ranks.close()


ARENAS = {6: 0, 7: 0}


def test_ranks_are_forked_with_a_ring_and_an_arena_each(node, tmp_path):
    zygote = Zygote()
    node.spawn(zygote, START, ARENAS)
    assert [(r.rank, r.local_rank, r.attempt) for r in node.all] == [(6, 0, 5), (7, 1, 5)]
    assert node.attempt == 5
    assert [process.env["RANK"] for process in zygote.spawned] == ["6", "7"]
    inherited = {"PULSETRAIN_RING_FD", "PULSETRAIN_ARENA_FD", "PULSETRAIN_DEVICES_FD"}
    assert zygote.spawned[0].files.keys() == inherited
    assert node.all[0].ring_fd != node.all[1].ring_fd
    assert node.all[1].err == tmp_path / "attempt_5" / "rank_7.err"


def test_a_rank_that_ends_by_itself_is_reported_with_its_last_lines(node):
    zygote = Zygote()
    node.spawn(zygote, START, ARENAS)
    node.all[1].err.write_text("Traceback\nValueError: boom\n")
    zygote.exits[1](1)
    assert node.ended == [node.all[1]]
    assert node.alive == (node.all[0],)
    report = node.all[1].report(IDENTITY, 17)
    assert (report.rank, report.code, report.ts_ns, report.last_lines[-1]) == (7, 1, 17, "ValueError: boom")
    assert node.all[1].status(0).state == "gone"


def test_ranks_that_are_stopped_are_not_reported(node):
    zygote = Zygote()
    node.spawn(zygote, START, ARENAS)
    node.stop(zygote, grace_s=0.0)
    assert node.alive == ()
    assert node.ended == []
    assert zygote.signals == [(0, signal.SIGKILL), (1, signal.SIGKILL)]


def test_a_grace_begins_with_sigterm_and_wakes_stopped_ranks(node):
    zygote = Zygote()
    node.spawn(zygote, START, ARENAS)
    node.stop(zygote, grace_s=0.001)
    assert [signum for pid, signum in zygote.signals if pid == 0] == [
        signal.SIGTERM,
        signal.SIGCONT,
        signal.SIGKILL,
    ]


def test_a_rank_that_survives_sigkill_is_named(node, monkeypatch):
    monkeypatch.setattr("pulsetrain.agent.processes.ranks.KILL_TIMEOUT_S", 0.01)
    zygote = Zygote()
    node.spawn(zygote, START, ARENAS)
    zygote.exits[0] = print
    with pytest.raises(Unavailable, match=r"rank 6 \(pid 4194305\) did not end"):
        node.stop(zygote, grace_s=0.0)


def test_where_one_rank_cannot_be_forked_none_stays(node):
    with pytest.raises(Unavailable, match="no memory"):
        node.spawn(Zygote(refuse=1), START, ARENAS)
    assert node.alive == ()
    assert node.ended == []


def test_without_ranks_there_is_no_attempt(node):
    node.spawn(Zygote(), START, ARENAS)
    node.close()
    assert (node.all, node.attempt) == ((), -1)


def test_what_ranks_print_becomes_rows_of_logs(node):
    zygote = Zygote()
    node.spawn(zygote, START, ARENAS)
    node.all[0].out.write_text("step 3\n")
    rows = [row for batch in node.all[0].batches(10**18) if batch.record == "logs" for row in batch.to_rows()]
    assert [(row["rank"], row["source"], row["message"]) for row in rows] == [(6, "stdout", "step 3")]


def test_ranks_start_on_as_many_devices_as_the_node_was_started_with_or_the_hub_wants(tmp_path):
    identity = dataclasses.replace(IDENTITY, devices=1)
    ranks = Ranks(identity, Program(argv=("train.py",)), tmp_path, lambda rank: None, ring_slots=64)
    ranks.spawn(Zygote(), START, ARENAS)
    assert [rank.device.device for rank in ranks.all] == [0, 0]
    ranks.spawn(Zygote(), dataclasses.replace(START, devices=2), ARENAS)
    assert [rank.device.device for rank in ranks.all] == [-1, -1]
    ranks.close()
    ranks.devices.close()


def test_ranks_in_which_nothing_of_ours_runs_share_no_device(tmp_path):
    program = Program(argv=("/bin/train",), mode="exec")
    ranks = Ranks(IDENTITY, program, tmp_path, lambda rank: None, ring_slots=64)
    with pytest.raises(UsageError, match="--no-python"):
        ranks.share(1, 0.0)
    ranks.devices.close()
