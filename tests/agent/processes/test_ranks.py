"""The ranks of a node: what each is started with, and how they end."""

import dataclasses
import os
import signal
import subprocess
import sys

import psutil
import pytest

from pulsetrain.agent.processes import kept_ranks
from pulsetrain.agent.processes.rank import NodeIdentity, Program
from pulsetrain.agent.processes.ranks import Ranks
from pulsetrain.collectors.rank.squash.cell import Page
from pulsetrain.collectors.rank.squash.hooks import SQUASH_FD
from pulsetrain.collectors.squash_layout import W_MASK
from pulsetrain.core.errors import ProgramRefused, Unavailable, UsageError
from pulsetrain.protocol.messages import ProgramUpdate, Start, WorldNode
from pulsetrain.protocol.rank_channel import LISTENING, PARKED, RESUMED, VARIABLE, RankChannel

WORLD = tuple(
    WorldNode(node=f"n{r}", node_rank=r, address=f"127.0.0.{r + 1}", peer_port=0, nproc=2) for r in range(4)
)
START = Start(
    id=1, job="gpt", attempt=5, node_rank=3, world=WORLD, store_address="127.0.0.1", store_port=1234
)
IDENTITY = NodeIdentity(job="gpt", node="n3", address="127.0.0.4", nproc_per_node=2, max_restarts=9)


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
    inherited = {"PULSETRAIN_RING_FD", "PULSETRAIN_ARENA_FD", "PULSETRAIN_DEVICES_FD", VARIABLE}
    assert zygote.spawned[0].files.keys() == inherited, "nothing for squashing, which nobody asked for"
    assert node.all[0].ring_fd != node.all[1].ring_fd
    assert node.all[1].err == tmp_path / "attempt_5" / "rank_7.err"


def test_what_a_dumped_rank_has_started_ends_with_it_also_in_a_session_of_its_own(node, monkeypatch):
    script = (
        "import subprocess; print(subprocess.Popen(['sleep', '60'], start_new_session=True).pid); input()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-u", "-c", script], **pipes) as process:
        started = psutil.Process(int(process.stdout.readline()))
        zygote = Zygote()
        node.spawn(zygote, START, ARENAS)
        for rank in node.all:
            rank.pid = process.pid
        monkeypatch.setattr(zygote, "signal", lambda pid, _: [r.end(-9) for r in node.all])
        node.stop_dumped(zygote)
        psutil.wait_procs([started], timeout=10)
    assert not started.is_running()
    assert node.alive == ()


def test_ranks_that_may_squash_inherit_the_memory_for_it(tmp_path):
    ranks = Ranks(IDENTITY, Program(argv=("train.py",)), tmp_path, print, ring_slots=64, squash_every=9)
    zygote = Zygote()
    ranks.spawn(zygote, dataclasses.replace(START, devices=1), ARENAS)
    assert zygote.spawned[1].files[SQUASH_FD] == ranks.devices.squash.fd
    assert Page(ranks.devices.squash.fd, 1).words[W_MASK] == 0, "who holds which shard is not known yet"
    ranks.look_at_devices(stepped=True)
    assert Page(ranks.devices.squash.fd, 1).words[W_MASK] == 0b11
    ranks.close()
    ranks.devices.close()


def test_a_rank_that_ends_by_itself_is_reported_with_its_last_lines(node):
    zygote = Zygote()
    node.spawn(zygote, START, ARENAS)
    node.all[1].err.write_text("Traceback\nValueError: boom\n")
    zygote.exits[1](1)
    assert node.ended == [node.all[1]]
    assert node.alive == (node.all[0],)
    report = node.all[1].report(IDENTITY, 17)
    assert (report.rank, report.code, report.ts_ns, report.last_lines[-1]) == (7, 1, 17, "ValueError: boom")
    assert node.all[1].status().state == "gone"


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


def test_ranks_are_told_the_signal_that_came_unless_they_ignore_it(node, monkeypatch):
    zygote = Zygote()
    node.spawn(zygote, START, ARENAS)
    deaf = node.all[1].pid
    monkeypatch.setattr("pulsetrain.agent.processes.ranks.ignores", lambda pid, signum: pid == deaf)
    node.stop(zygote, 0.001, signal.SIGINT)
    assert zygote.signals[:2] == [(0, signal.SIGINT), (1, signal.SIGTERM)]


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


def updated(start, **changes):
    return dataclasses.replace(start, program=ProgramUpdate(**{"number": 1} | changes))


def test_an_update_replaces_arguments_and_adds_variables(node):
    zygote = Zygote()
    node.spawn(zygote, updated(START, argv=("b.py", "--lr", "2"), environment={"K": "1"}), ARENAS)
    assert [(process.argv, process.env["K"]) for process in zygote.spawned] == [
        (("b.py", "--lr", "2"), "1"),
        (("b.py", "--lr", "2"), "1"),
    ]
    assert [process.env["RANK"] for process in zygote.spawned] == ["6", "7"]
    node.spawn(zygote, START, ARENAS)
    assert zygote.spawned[-1].argv == ("train.py", "-v")
    assert "K" not in zygote.spawned[-1].env


def test_arguments_may_name_the_local_rank_as_for_torchrun(node):
    zygote = Zygote()
    words = ("bin-${local_rank}", "--cpus=${local_rank}", "$local_rank", "$$HOME", "${other}", "$5")
    node.spawn(zygote, updated(START, argv=words), ARENAS)
    assert [process.argv for process in zygote.spawned] == [
        ("bin-${local_rank}", "--cpus=0", "0", "$HOME", "${other}", "$5"),
        ("bin-${local_rank}", "--cpus=1", "1", "$HOME", "${other}", "$5"),
    ]


def test_a_variable_of_an_update_takes_the_place_of_none_of_ours(node):
    zygote = Zygote()
    node.spawn(zygote, updated(START, environment={"RANK": "0", "MASTER_PORT": "9"}), ARENAS)
    assert (zygote.spawned[0].env["RANK"], zygote.spawned[0].env["MASTER_PORT"]) == ("6", "1234")


def test_an_update_to_a_script_that_is_not_there_is_refused(node, tmp_path):
    with pytest.raises(ProgramRefused, match=r"nosuch\.py"):
        node.refuse_update(ProgramUpdate(number=1, argv=("nosuch.py",)))
    script = tmp_path / "b.py"
    script.touch()
    node.refuse_update(ProgramUpdate(number=1, argv=(str(script),)))
    node.refuse_update(ProgramUpdate())


class Listening(Zygote):
    """Its ranks can go on in their processes. Those of `deaf` never answer."""

    def __init__(self, deaf=()):
        super().__init__()
        self.deaf, self.ends = deaf, []

    def spawn(self, process, on_exit):
        end = RankChannel.inherited({VARIABLE: str(os.dup(process.files[VARIABLE]))})
        self.ends.append(end)
        end.send(LISTENING)
        if len(self.ends) - 1 not in self.deaf:
            end.send(PARKED)
        return super().spawn(process, on_exit)


NEXT = dataclasses.replace(START, attempt=6, store_port=77, restore_step=8)


@pytest.fixture
def arenas():
    fds = {rank: os.memfd_create("arena") for rank in ARENAS}
    yield fds
    for fd in fds.values():
        os.close(fd)


def test_a_kept_process_is_a_rank_of_the_next_attempt(node, arenas):
    zygote = Listening()
    node.spawn(zygote, START, arenas)
    pids = [rank.pid for rank in node.all]
    node.keep(zygote, (6,), 5.0, lambda: False)
    node.close()
    assert zygote.signals == [(0, signal.SIGKILL)]
    zygote.ends[1].send(RESUMED, attempt="6")
    node.spawn(zygote, NEXT, arenas)
    assert [rank.pid == pid for rank, pid in zip(node.all, pids, strict=True)] == [False, True]
    assert (node.kept, node.not_kept, node.ended) == ([7], {6: "it is at fault"}, [])
    assert zygote.ends[1].receive(1.0)[0] == {"op": "abort"}
    resume, files = zygote.ends[1].receive(1.0)
    assert (resume["env"]["PULSETRAIN_ATTEMPT"], resume["env"]["MASTER_PORT"]) == ("6", "77")
    assert os.fstat(files[2]).st_ino == os.fstat(node.all[1].ring_fd).st_ino
    assert os.fstat(files[3]).st_ino == os.fstat(arenas[7]).st_ino
    for fd in files:
        os.close(fd)
    zygote.exits[1](1)
    assert [(rank.rank, rank.attempt, rank.code) for rank in node.ended] == [(7, 6, 1)]


def test_a_rank_that_does_not_give_up_its_attempt_is_killed(node, arenas):
    zygote = Listening(deaf=(1,))
    node.spawn(zygote, START, arenas)
    node.keep(zygote, (), 0.01, lambda: False)
    assert zygote.signals == [(1, signal.SIGKILL)]
    assert "did not give up" in node.not_kept[7]


def test_a_rank_that_does_not_go_on_is_killed_and_started_anew(node, arenas, monkeypatch):
    monkeypatch.setattr("pulsetrain.agent.processes.ranks.RESUME_TIMEOUT_S", 0.01)
    zygote = Listening()
    node.spawn(zygote, START, arenas)
    node.keep(zygote, (6,), 5.0, lambda: False)
    node.close()
    node.spawn(zygote, NEXT, arenas)
    assert zygote.signals == [(0, signal.SIGKILL), (1, signal.SIGKILL)]
    assert len(zygote.spawned) == 4
    assert (node.kept, node.ended, [rank.code for rank in node.all]) == ([], [], [None, None])
    assert "did not go on" in node.not_kept[7]


@pytest.fixture
def dies_in_going_on(monkeypatch):
    """Kept processes end, with code 1, as soon as they are told to go on."""

    def use(zygote, *, says):
        resume = kept_ranks.resume

        def die(seat, environment, files):
            told = resume(seat, environment, files)
            if says:
                zygote.ends[1].send(RESUMED, attempt="6")
            else:
                zygote.ends[1].close()
            zygote.exits[1](1)
            return told

        monkeypatch.setattr(kept_ranks, "resume", die)

    return use


def test_a_kept_process_that_dies_before_it_goes_on_is_started_anew_and_is_no_failure(
    node, arenas, dies_in_going_on
):
    zygote = Listening()
    dies_in_going_on(zygote, says=False)
    node.spawn(zygote, START, arenas)
    node.keep(zygote, (6,), 5.0, lambda: False)
    node.close()
    node.spawn(zygote, NEXT, arenas)
    assert (len(zygote.spawned), node.kept, node.ended) == (4, [], [])
    assert node.not_kept[7] == "its process is gone"
    zygote.exits[3](1)
    assert [(rank.rank, rank.code) for rank in node.ended] == [(7, 1)], (
        "the new process is a rank as any other"
    )


def test_a_kept_process_that_dies_once_it_goes_on_has_failed(node, arenas, dies_in_going_on):
    zygote = Listening()
    dies_in_going_on(zygote, says=True)
    node.spawn(zygote, START, arenas)
    node.keep(zygote, (6,), 5.0, lambda: False)
    node.close()
    node.spawn(zygote, NEXT, arenas)
    assert (len(zygote.spawned), node.kept) == (3, [7])
    assert [(rank.rank, rank.code) for rank in node.ended] == [(7, 1)]


def test_a_kept_process_with_the_program_from_before_an_update_is_started_anew(node, arenas):
    zygote = Listening()
    node.spawn(zygote, START, arenas)
    node.keep(zygote, (6,), 5.0, lambda: False)
    node.close()
    node.spawn(zygote, updated(NEXT), arenas)
    assert (len(zygote.spawned), node.kept) == (4, [])
    assert "from before an update" in node.not_kept[7]


def test_a_kept_process_that_died_meanwhile_is_started_anew(node, arenas):
    zygote = Listening()
    node.spawn(zygote, START, arenas)
    node.keep(zygote, (6,), 5.0, lambda: False)
    node.close()
    zygote.exits[1](-9)
    node.spawn(zygote, NEXT, arenas)
    assert (len(zygote.spawned), node.kept, node.ended) == (4, [], [])


def test_kept_processes_end_where_the_job_does(node, arenas):
    zygote = Listening()
    node.spawn(zygote, START, arenas)
    node.keep(zygote, (), 5.0, lambda: False)
    node.close()
    node.drop_kept(zygote)
    assert zygote.signals == [(0, signal.SIGKILL), (1, signal.SIGKILL)]


def test_after_a_stop_for_good_nothing_is_said_of_those_that_were_not_kept(node, arenas):
    zygote = Listening()
    node.spawn(zygote, START, arenas)
    node.keep(zygote, (6,), 5.0, lambda: False)
    node.close()
    node.drop_kept(zygote)
    assert node.not_kept == {}


def test_ranks_of_a_host_that_dumps_processes_start_anew(tmp_path, arenas):
    host = Ranks(IDENTITY, Program(argv=("train.py",)), tmp_path, lambda rank: None, keeps=lambda: False)
    zygote = Zygote()
    host.spawn(zygote, START, arenas)
    host.keep(zygote, (), 5.0, lambda: False)
    assert host.not_kept == dict.fromkeys((6, 7), "ranks of a host that dumps processes start anew")
    assert host.alive == ()


def test_ranks_that_share_devices_start_anew(node, arenas, monkeypatch):
    zygote = Listening()
    node.spawn(zygote, START, arenas)
    node.devices.number = 1
    node.keep(zygote, (), 5.0, lambda: False)
    assert node.not_kept == dict.fromkeys((6, 7), "ranks that share devices start anew")
    assert node.alive == ()
