"""Ranks that replay training for a check: forked by a real zygote, and by a stand-in."""

import os
import signal
import socket
import threading
import time
from dataclasses import replace

import pytest
from torch.distributed import TCPStore

from pulsetrain.agent.processes.rank import Program
from pulsetrain.agent.processes.replay_ranks import ReplayRanks
from pulsetrain.agent.processes.zygote import Zygote
from pulsetrain.core.errors import Unavailable
from pulsetrain.protocol.messages import ReplayCheck
from tests.agent.fakenode import IDENTITY
from tests.agent.real_processes import until

CHECK = ReplayCheck(
    id=1, members=("b", "a"), store_address="127.0.0.1", store_port=0, number=31, seconds=3, timeout_s=9
)


@pytest.fixture
def port():
    """Where the groups of these tests meet."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def check(port):
    return replace(CHECK, store_port=port)


class Forks:
    """Notes what it is to fork. Ranks end when the test says so, and a killed one at once."""

    def __init__(self):
        self.spawned, self.on_exit, self.killed, self.refuses = [], {}, [], ""
        self.ready, self.dead = True, False

    def spawn(self, process, on_exit):
        if self.refuses:
            raise Unavailable(self.refuses)
        self.spawned.append(process)
        pid = 100 + len(self.spawned)
        self.on_exit[pid] = on_exit
        return pid

    def signal(self, pid, signum):
        self.killed.append((pid, signum))
        self.on_exit[pid](-signum)


def running(ranks, forks, check):
    """The replay on a thread of its own, once its two ranks are there. The thread and its answer."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(ranks.run(forks, IDENTITY, check)))
    thread.start()
    assert until(lambda: len(forks.on_exit) == 2, 5)
    return thread, answers


def ended(thread, answers):
    thread.join(5)
    return answers[0]


def test_ranks_of_a_node_have_torchruns_variables_and_no_others_of_the_job(tmp_path, check):
    forks, ranks = Forks(), ReplayRanks(log_dir=tmp_path)
    thread, answers = running(ranks, forks, check)
    forks.on_exit[101](0)
    forks.on_exit[102](0)
    answer = ended(thread, answers)
    assert (answer["ok"], answer["error"], answer["log"]) == (True, "", str(tmp_path / "replay_31" / "a"))
    first, second = forks.spawned
    assert (first.argv, first.mode) == (("pulsetrain.diagnostics.replay", "--seconds", "3"), "module")
    wanted = {
        "RANK": "2",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "4",
        "GROUP_RANK": "1",
        "MASTER_PORT": str(check.store_port),
    }
    assert wanted.items() <= first.env.items()
    assert second.env["RANK"] == "3"
    assert first.env["PULSETRAIN_REPLAY"] == "1"
    assert "PULSETRAIN_JOB" not in first.env
    assert forks.killed == []


def test_a_command_runs_where_all_nodes_have_one_and_in_its_own_folder(tmp_path, check):
    program = Program(argv=("small.py", "--steps", "3"), cwd=tmp_path)
    forks, ranks = Forks(), ReplayRanks(program, tmp_path)
    assert ranks.kind == "command"
    thread, answers = running(ranks, forks, replace(check, command=True))
    forks.on_exit[101](0)
    forks.on_exit[102](0)
    assert ended(thread, answers)["ok"]
    assert (forks.spawned[0].argv, forks.spawned[0].cwd) == (program.argv, tmp_path)


def test_the_rank_that_failed_by_itself_is_told_and_the_other_one_is_ended(tmp_path, check):
    forks, ranks = Forks(), ReplayRanks(log_dir=tmp_path)
    thread, answers = running(ranks, forks, check)
    (tmp_path / "replay_31" / "a" / "rank_2.log").write_text(
        "RuntimeError: Connection closed by peer [h]:1\n"
    )
    (tmp_path / "replay_31" / "a" / "rank_3.log").write_text(
        "hint\nValueError: loss is nan\nset A=1 for more\n"
    )
    forks.on_exit[101](1)
    forks.on_exit[102](1)
    answer = ended(thread, answers)
    assert (answer["ok"], answer["error"]) == (False, "rank 3: ValueError: loss is nan (exit status 1)")


def test_what_does_not_end_in_time_has_failed_and_is_killed(tmp_path, check):
    forks, ranks = Forks(), ReplayRanks(log_dir=tmp_path)
    thread, answers = running(ranks, forks, replace(check, timeout_s=0.2))
    answer = ended(thread, answers)
    assert (answer["ok"], answer["error"], answer["late"]) == (False, "it did not end in 0.2 s", True)
    assert sorted(forks.killed) == [(101, signal.SIGKILL), (102, signal.SIGKILL)]


def test_the_hub_ends_a_replay_which_then_says_nothing(tmp_path, check):
    forks, ranks = Forks(), ReplayRanks(log_dir=tmp_path)
    thread, answers = running(ranks, forks, check)
    assert ranks.run(forks, IDENTITY, ReplayCheck(id=2)) == {}
    assert ended(thread, answers) == {"ok": False, "not_judged": "the replay was ended", "error": ""}
    assert len(forks.killed) == 2


def test_a_replay_that_waits_for_its_turn_is_ended_as_well(tmp_path, check):
    """Else it would train on devices of the job that was launched meanwhile."""
    forks, ranks = Forks(), ReplayRanks(log_dir=tmp_path)
    with ranks._turn:
        answers = []
        thread = threading.Thread(target=lambda: answers.append(ranks.run(forks, IDENTITY, check)))
        thread.start()
        assert until(lambda: ranks._ends == 1, 5)
        launch = threading.Thread(target=ranks.end)
        launch.start()
        assert until(lambda: ranks._ends == 2, 5)
    launch.join(5)
    assert ended(thread, answers)["not_judged"] == "the replay was ended"
    assert forks.spawned == []


def test_what_is_no_fault_of_the_machine_says_nothing(tmp_path, check):
    forks, ranks = Forks(), ReplayRanks(log_dir=tmp_path)
    forks.refuses = "zygote: no memory"
    assert ranks.run(forks, IDENTITY, check)["not_judged"] == "zygote: no memory"
    forks.ready = False
    assert "started anew" in ranks.run(forks, IDENTITY, check)["not_judged"]
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nowhere = closed.getsockname()[1]
    forks.ready = True
    answer = ranks.run(forks, IDENTITY, replace(check, store_port=nowhere))
    assert answer["not_judged"].startswith("it does not reach the others: 127.0.0.1:")
    assert forks.spawned == []


def test_ranks_that_somebody_else_killed_say_nothing(tmp_path, check):
    forks, ranks = Forks(), ReplayRanks(log_dir=tmp_path)
    thread, answers = running(ranks, forks, check)
    forks.on_exit[101](-signal.SIGKILL)
    forks.on_exit[102](-signal.SIGKILL)
    assert "killed from outside" in ended(thread, answers)["not_judged"]


def test_a_gpu_without_free_memory_says_nothing(tmp_path, check):
    forks, ranks = Forks(), ReplayRanks(log_dir=tmp_path)
    thread, answers = running(ranks, forks, check)
    (tmp_path / "replay_31" / "a" / "rank_2.log").write_text("ValueError: no\n")
    (tmp_path / "replay_31" / "a" / "rank_3.log").write_text("OutOfMemoryError: CUDA out of memory.\n")
    forks.on_exit[101](1)
    forks.on_exit[102](1)
    assert "CUDA out of memory" in ended(thread, answers)["not_judged"]


@pytest.mark.integration
def test_a_real_node_replays_with_the_projects_own_training_and_with_a_script(tmp_path):
    (tmp_path / "queue.py").write_text("raise SystemExit('a module of the user')")
    script = tmp_path / "small.py"
    script.write_text("import os, sys, time\nprint(os.environ['PULSETRAIN_REPLAY'])\ntime.sleep(30)\n")
    zygote = Zygote.start(env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        zygote.wait_ready(60)
        check = replace(CHECK, members=("a",), store_port=store.port)
        answer = ReplayRanks(log_dir=tmp_path).run(
            zygote, IDENTITY, replace(check, seconds=0.5, timeout_s=60)
        )
        assert answer["ok"], answer
        assert "replayed" in (tmp_path / "replay_31" / "a" / "rank_1.log").read_text()

        own = ReplayRanks(Program(argv=(str(script),)), tmp_path)
        began_s = time.monotonic()
        answer = own.run(zygote, IDENTITY, replace(check, number=32, command=True, timeout_s=3.0))
        assert answer["error"] == "it did not end in 3 s"
        assert time.monotonic() - began_s < 10
        assert (tmp_path / "replay_32" / "a" / "rank_0.log").read_text() == "1\n"
    finally:
        zygote.close()
