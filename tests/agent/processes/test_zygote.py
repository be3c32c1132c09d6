"""The zygote and what it forks, with real torch in real processes."""

import gzip
import json
import os
import queue
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest

from pulsetrain.agent.processes.zygote import BOOT, ForkTable, Zygote, ZygoteHolder
from pulsetrain.agent.processes.zygote_protocol import RankProcess
from pulsetrain.core.errors import PulsetrainError, Unavailable, UsageError
from pulsetrain.protocol import packets
from tests.agent.real_processes import alive, until


class TestForkTable:
    """Who waits for which process."""

    def test_each_child_is_reported_to_who_asked_for_it(self):
        table, codes = ForkTable(), []
        first = table.request(1, lambda code: codes.append(("first", code)))
        second = table.request(2, lambda code: codes.append(("second", code)))
        table.spawned(2, 20)
        table.spawned(1, 10)
        assert (first.result(0), second.result(0)) == (10, 20)
        table.exited(10, 3)
        table.exited(20, -9)
        assert codes == [("first", 3), ("second", -9)]

    def test_a_fork_that_nobody_waits_for_any_more_is_still_known(self):
        table, codes = ForkTable(), []
        table.request(1, codes.append)
        table.forget(1)
        table.spawned(1, 10)
        table.exited(10, 0)
        assert codes == []

    def test_when_the_zygote_ends_every_request_fails_and_every_child_is_reported_once(self):
        table, codes = ForkTable(), []

        def broken(code):
            raise OSError("disk")

        table.request(1, codes.append)
        table.request(2, broken)
        for number in (1, 2):
            table.spawned(number, number)
        waiting = table.request(3, codes.append)
        with pytest.raises(OSError, match="disk"):
            table.fail_all(Unavailable("gone"))
        with pytest.raises(Unavailable, match="gone"):
            waiting.result(0)
        assert codes == [-signal.SIGKILL]


def test_an_agent_with_many_open_files_hears_its_zygote_and_its_workers(only_high_descriptors):
    class Process:
        pid = 1

        def wait(self, _):
            return 0

    ours, theirs = packets.pair()
    assert ours.fileno() >= 1024
    zygote = Zygote(Process(), ours)
    packets.send(theirs, {"op": "ready", "seconds": 0.0})
    assert zygote.wait_ready(10)["op"] == "ready"

    def worker():
        packet = packets.receive(theirs)
        request, (answer,) = packet
        packets.send(theirs, {"op": "spawned", "id": request["id"], "pid": 7})
        os.write(answer, b'{"value": 3}')
        os.close(answer)

    thread = threading.Thread(target=worker, daemon=True)
    thread.start()
    assert zygote.serve("module:function", {}, 10) == (7, 3)
    thread.join(10)
    zygote.close()
    theirs.close()


def test_a_zygote_that_replaces_another_may_open_as_many_files_as_the_first(monkeypatch):
    class Fake:
        dead = False

        def __init__(self):
            self.process = subprocess.Popen(["sleep", "60"])
            self.pid = self.process.pid

        def close(self):
            self.process.kill()
            self.process.wait()

    users = (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    with monkeypatch.context() as before:
        before.setattr(resource, "getrlimit", lambda _: users)
        holder = ZygoteHolder(Fake)
    try:
        holder.current.dead = True
        assert holder.replace_dead()
        assert resource.prlimit(holder.current.pid, resource.RLIMIT_NOFILE) == users
    finally:
        holder.close()


def test_a_zygote_that_ended_is_replaced():
    class Fake:
        dead, pid, closed = False, 1, False

        def close(self):
            self.closed = True

    holder = ZygoteHolder(Fake)
    first = holder.current
    assert not holder.replace_dead()
    first.dead = True
    assert holder.replace_dead()
    assert first.closed
    assert holder.current is not first


@pytest.fixture(scope="module")
def zygote():
    secrets = dict.fromkeys(
        (
            "PULSETRAIN_TOKEN",
            "PULSETRAIN_HUB_TOKEN",
            "PULSETRAIN_HUB_STORE",
            "PULSETRAIN_KAFKA_SASL_PASSWORD",
        ),
        "s",
    )
    zygote = Zygote.start(env={**os.environ, "OMP_NUM_THREADS": "1", **secrets})
    zygote.ready_report = zygote.wait_ready(60)
    yield zygote
    zygote.close()


class Ran:
    def __init__(self, zygote, folder, text, *, args=(), mode="script", env=None, wait=True):
        self.script = folder / "script.py"
        self.script.write_text(text)
        self.out, self.err = folder / "out", folder / "err"
        self.ended, self.code = threading.Event(), None
        argv = [str(self.script), *args] if mode == "script" else list(args)
        with self.out.open("wb") as out, self.err.open("wb") as err:
            rank = RankProcess(
                argv=argv,
                mode=mode,
                env=env or {},
                cwd=folder,
                stdout=out.fileno(),
                stderr=err.fileno(),
                files={},
            )
            self.pid = zygote.spawn(rank, self._end)
        if wait:
            assert self.ended.wait(60)

    def _end(self, code):
        self.code = code
        self.ended.set()


@pytest.fixture
def ran(zygote, tmp_path):
    return lambda text="", **options: Ran(zygote, tmp_path, text, **options)


@pytest.mark.integration
@pytest.mark.parametrize("option", [["-P"], []])
def test_a_safe_path_that_python_was_told_of_holds_for_ranks_too(option):
    code = (
        "from pulsetrain.agent.processes import zygote\n"
        "zygote.BOOT = 'import sys; sys.exit(40 + sys.flags.safe_path)'\n"
        "print(zygote.Zygote.start()._process.wait())"
    )
    environ = {**os.environ, "PYTHONPATH": os.getcwd()}
    command = [sys.executable, *option, "-c", code]
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=False)
    assert done.stdout == f"{40 + len(option)}\n"


@pytest.mark.integration
def test_it_is_single_threaded_so_that_a_fork_is_safe(zygote):
    ours = {"python", "python3", Path(sys.executable).name[:15]}
    tasks = (Path("/proc") / str(zygote.pid) / "task").iterdir()
    names = [(task / "comm").read_text().strip() for task in tasks]
    assert [name for name in names if name not in ours] in ([], ["jemalloc_bg_thd"])


@pytest.mark.integration
def test_a_rank_is_main_with_its_arguments_environment_and_folder(ran, tmp_path):
    rank = ran(
        "import os, sys; print(__name__, sys.argv[1:], os.environ['RANK'], os.getcwd(), sys.path[0])",
        args=("--steps", "3"),
        env={"RANK": "5"},
    )
    assert rank.code == 0
    assert rank.out.read_text().split() == [
        "__main__",
        "['--steps',",
        "'3']",
        "5",
        str(tmp_path),
        str(tmp_path),
    ]


@pytest.mark.integration
def test_the_agents_token_is_not_in_a_ranks_environment(ran):
    kept = "[k for k in os.environ if 'TOKEN' in k or 'PASSWORD' in k or 'STORE' in k]"
    assert ran(f"import os; print({kept})").out.read_text() == "[]\n"


@pytest.mark.integration
def test_forked_twins_draw_different_random_numbers(ran):
    draw = "import numpy, random; print(numpy.random.random(), random.random())"
    assert ran(draw).out.read_text() != ran(draw).out.read_text()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("import sys; sys.exit(7)", 7),
        ("raise SystemExit", 0),
        ("import sys; sys.exit('too few ranks')", 1),
        ("1 / 0", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV),
        ("import os; os._exit(3)", 3),
    ],
)
def test_exit_codes_are_those_of_python(ran, text, code):
    assert ran(text).code == code


@pytest.mark.integration
def test_a_traceback_begins_in_the_script_and_ends_stderr(ran):
    rank = ran("def f():\n    raise ValueError('boom')\nf()\n")
    lines = rank.err.read_text().splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].startswith(f'  File "{rank.script}", line 3')
    assert lines[-1] == "ValueError: boom"


@pytest.mark.integration
def test_a_full_disk_under_its_output_does_not_end_a_rank(zygote):
    ended = queue.SimpleQueue()
    with Path("/dev/full").open("wb") as full:
        rank = RankProcess(
            argv=("this",),  # a module that prints
            mode="module",
            env={},
            cwd=Path("/"),
            stdout=full.fileno(),
            stderr=full.fileno(),
            files={},
        )
        zygote.spawn(rank, ended.put)
        assert ended.get(timeout=60) == 0


@pytest.mark.integration
def test_exit_handlers_and_threads_are_waited_for(ran):
    rank = ran(
        "import atexit, threading, time\n"
        "atexit.register(print, 'handler')\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\n"
    )
    assert rank.out.read_text() == "thread\nhandler\n"


@pytest.mark.integration
def test_modules_and_programs_run_too(ran):
    assert "usage" in ran(mode="module", args=("json.tool", "-h")).out.read_text()
    program = ran(mode="exec", args=("sh", "-c", "echo $RANK; exit 4"), env={"RANK": "1"})
    assert (program.code, program.out.read_text()) == (4, "1\n")


@pytest.mark.integration
def test_torch_works_in_a_rank_as_if_it_had_been_imported_there(ran):
    rank = ran(
        "import torch\n"
        "from torch.utils.data import DataLoader\n"
        "torch.set_num_threads(2)\n"
        "x = torch.randn(300, 300, requires_grad=True)\n"
        "(x @ x).sum().backward()\n"
        "assert x.grad is not None and torch.get_num_threads() == 2\n"
        "assert not torch.cuda.is_initialized() and not torch.cuda._is_in_bad_fork()\n"
        "print(sorted(int(b) for b in DataLoader(range(8), num_workers=2)))\n"
    )
    assert rank.err.read_text() == ""
    assert rank.out.read_text() == "[0, 1, 2, 3, 4, 5, 6, 7]\n"


@pytest.mark.integration
def test_spawned_children_of_a_rank_find_its_functions(ran):
    rank = ran(
        "import multiprocessing as mp\n"
        "def square(x):\n    return x * x\n"
        "if __name__ == '__main__':\n"
        "    with mp.get_context('spawn').Pool(1) as pool:\n        print(pool.map(square, [3]))\n"
    )
    assert rank.out.read_text() == "[9]\n", rank.err.read_text()


@pytest.mark.integration
def test_an_exit_is_heard_within_50_ms(ran):
    took = [1.0]
    while min(took) >= 0.05 and len(took) < 40:  # the machine may be busy with something else
        rank = ran("import time; time.sleep(60)", wait=False)
        time.sleep(0.1)
        killed = time.perf_counter()
        os.kill(rank.pid, signal.SIGKILL)
        assert rank.ended.wait(40)
        took.append(time.perf_counter() - killed)
        assert rank.code == -signal.SIGKILL
    assert min(took) < 0.05


@pytest.mark.integration
def test_what_a_failed_rank_started_dies_with_it(ran):
    rank = ran("import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True); 1 / 0")
    assert until(lambda: not alive(int(rank.out.read_text())))


SLOW_END = (
    "import signal, sys, time\n"
    "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.3), print('saved', flush=True), sys.exit(0)))\n"
    "print('trains', flush=True)\ntime.sleep(60)\n"
)


def wrapped(zygote, folder, text, trap=""):
    """A shell that runs a script and does not wait for it when it is told to end. And the script's pid."""
    (folder / "train.py").write_text(text)
    line = f"{trap}{sys.executable} train.py & echo $! > pid; wait; exit 1"
    ran = Ran(zygote, folder, "", args=("bash", "-c", line), mode="exec", wait=False)
    assert until(lambda: "trains" in ran.out.read_text())
    return ran, int((folder / "pid").read_text())


@pytest.mark.integration
def test_what_a_shell_started_has_the_time_that_was_given_to_the_rank(zygote, tmp_path):
    ran, _ = wrapped(zygote, tmp_path, SLOW_END)
    zygote.signal(ran.pid, signal.SIGTERM)
    assert ran.ended.wait(10)
    assert (ran.out.read_text(), ran.code) == ("trains\nsaved\n", -signal.SIGTERM)


@pytest.mark.integration
def test_so_it_has_where_the_shell_ends_with_status_0_on_the_signal(zygote, tmp_path):
    ran, pid = wrapped(zygote, tmp_path, SLOW_END, trap="trap 'exit 0' TERM; ")
    zygote.signal(ran.pid, signal.SIGTERM)
    assert ran.ended.wait(10)
    assert (ran.out.read_text(), ran.code, alive(pid)) == ("trains\nsaved\n", 0, False)


@pytest.mark.integration
def test_what_a_shell_leaves_behind_at_its_own_end_is_not_waited_for(zygote, tmp_path):
    line = "trap '' USR1; echo trains; sleep 5 & sleep 0.2; exit 0"
    ran = Ran(zygote, tmp_path, "", args=("bash", "-c", line), mode="exec", wait=False)
    assert until(lambda: "trains" in ran.out.read_text())
    zygote.signal(ran.pid, signal.SIGUSR1)
    assert ran.ended.wait(4)
    assert ran.code == 0


@pytest.mark.integration
def test_what_a_shell_started_is_killed_at_the_end_of_that_time(zygote, tmp_path):
    ran, pid = wrapped(zygote, tmp_path, SLOW_END.replace("0.3", "60"))
    zygote.signal(ran.pid, signal.SIGTERM)
    assert not ran.ended.wait(0.3)
    zygote.signal(ran.pid, signal.SIGKILL)
    assert ran.ended.wait(10)
    assert not alive(pid)


@pytest.mark.integration
def test_what_a_shell_started_dies_with_a_zygote_that_is_killed(tmp_path):
    zygote = Zygote.start()
    try:
        zygote.wait_ready(60)
        ran, pid = wrapped(zygote, tmp_path, "import time\nprint('trains', flush=True)\ntime.sleep(60)\n")
        os.kill(zygote.pid, signal.SIGKILL)
        assert ran.ended.wait(10)
        assert until(lambda: not alive(pid), 1.0)
    finally:
        zygote.close()


@pytest.mark.integration
def test_a_worker_returns_json_or_its_error(zygote):
    assert zygote.call("os:getpid", {}, 60) != zygote.pid
    assert zygote.call("json:loads", {"s": '{"a": [1]}'}, 5) == {"a": [1]}
    with pytest.raises(PulsetrainError, match="json:loads: JSONDecodeError"):
        zygote.call("json:loads", {"s": "{"}, 60)
    with pytest.raises(Unavailable, match="died without a result"):
        zygote.call("os:abort", {}, 60)


@pytest.mark.integration
def test_a_worker_that_takes_too_long_is_killed(zygote):
    started = time.monotonic()
    with pytest.raises(Unavailable, match=r"no result in 0\.2 s"):
        zygote.call("signal:pause", {}, 0.2)
    assert time.monotonic() - started < 40  # `pause` has no end


@pytest.mark.integration
def test_a_service_lives_on_and_each_store_is_new(zygote):
    first, second = (zygote.serve("pulsetrain.agent.processes.rendezvous:host", {}, 60) for _ in range(2))
    assert first[1]["port"] != second[1]["port"]
    for pid, _ in (first, second):
        assert alive(pid)
        zygote.signal(pid, signal.SIGKILL)
        assert until(lambda pid=pid: not alive(pid))


@pytest.mark.integration
def test_each_rank_has_random_numbers_of_its_own(zygote, tmp_path):
    text = "import random, numpy, torch\nprint(torch.initial_seed(), random.random(), numpy.random.rand())"
    drawn = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        drawn.append(Ran(zygote, tmp_path / name, text).out.read_text().split())
    assert all(one != other for one, other in zip(*drawn, strict=True)), drawn


@pytest.mark.integration
def test_a_signal_for_all_processes_reaches_the_ranks_and_not_the_zygote(zygote, tmp_path):
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(zygote.pid, signum)
    text = "from signal import *\nprint(*map(getsignal, (SIGTERM, SIGINT, SIGUSR1, SIGUSR2)))"
    plain = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    told = Ran(zygote, tmp_path, text).out.read_text()
    assert re.sub("0x.*", "", told) == re.sub("0x.*", "", plain.stdout)
    assert not zygote.dead


@pytest.mark.integration
def test_a_signal_for_ranks_does_not_end_a_service(zygote):
    pid, _ = zygote.serve("pulsetrain.agent.processes.rendezvous:host", {}, 20)
    for signum in (signal.SIGUSR1, signal.SIGUSR2):
        os.kill(pid, signum)
    assert not until(lambda: not alive(pid), 0.2)
    zygote.signal(pid, signal.SIGKILL)


@pytest.mark.integration
def test_a_signal_that_comes_during_the_imports_does_not_end_the_zygote(tmp_path):
    (tmp_path / "registers.py").write_text(
        "import faulthandler, os, signal, sys\nfaulthandler.register(signal.SIGUSR2, sys.stderr)\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\n"
    )
    zygote = Zygote.start(preload=("registers",), path=(tmp_path,))
    try:
        zygote.wait_ready(60)
        ran = Ran(zygote, tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGUSR2)")
        assert ran.code == 0
        assert "most recent call first" in ran.err.read_text(), "a handler of the user's own stays"
        assert Ran(zygote, tmp_path, "import os\nos.kill(os.getpid(), 10)").code == -signal.SIGUSR1
    finally:
        zygote.close()


@pytest.mark.integration
def test_what_ends_with_a_trailer_is_whole_though_the_script_left_it_open(zygote, tmp_path):
    text = (
        "import gzip, zipfile, tempfile, ctypes\n"
        "def cycle(): return packed, archive, temporary\n"
        "packed = gzip.open('a.gz', 'wt'); packed.write('whole')\n"
        "archive = zipfile.ZipFile('a.zip', 'w'); archive.writestr('name', 'whole')\n"
        "temporary = tempfile.NamedTemporaryFile(dir='.', prefix='left')\n"
        "ctypes.CDLL(None).printf(b'from C')\n"
    )
    ran = Ran(zygote, tmp_path, text)
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()) == b"whole"
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.read("name") == b"whole"
    assert not list(tmp_path.glob("left*"))
    assert ran.out.read_text() == "from C"


@pytest.mark.integration
def test_a_store_that_may_be_dumped_writes_into_none_of_the_agents_files(zygote):
    pid, _ = zygote.serve("pulsetrain.agent.processes.rendezvous:host", {"dumpable": True}, 60)
    assert {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in range(3)} == {"/dev/null"}


@pytest.mark.integration
def test_a_module_that_cannot_be_preloaded_is_named(tmp_path):
    (tmp_path / "broken.py").write_text("raise RuntimeError('no licence')")
    zygote = Zygote.start(preload=("broken",), path=(tmp_path,))
    try:
        with pytest.raises(UsageError, match="cannot preload: RuntimeError: no licence"):
            zygote.wait_ready(60)
    finally:
        zygote.close()


@pytest.mark.integration
@pytest.mark.parametrize("text", ["", "raise RuntimeError('no licence')"])
def test_an_agent_that_leaves_during_the_imports_leaves_no_complaint(tmp_path, text):
    (tmp_path / "mine.py").write_text(text)
    ours, theirs = packets.pair()
    ours.close()
    options = json.dumps({"node": "a", "preload": ["mine"], "path": [str(tmp_path)]})
    command = [sys.executable, "-c", BOOT, str(theirs.fileno()), str(os.getpid()), options]
    with theirs:
        done = subprocess.run(
            command, pass_fds=(theirs.fileno(),), capture_output=True, text=True, timeout=100
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.integration
def test_killing_the_owner_kills_the_zygote_and_its_ranks(tmp_path):
    line = f"sleep 60 & echo $! > {tmp_path}/pid; wait"
    owner = (
        "import os, time\nfrom pathlib import Path\nfrom pulsetrain.agent.processes.zygote import Zygote\n"
        "from pulsetrain.agent.processes.zygote_protocol import RankProcess\n"
        "z = Zygote.start()\nz.wait_ready(60)\nout = os.open(os.devnull, os.O_WRONLY)\n"
        f"args = dict(argv=['bash', '-c', {line!r}], mode='exec', env={{}}, cwd=Path('/'), files={{}})\n"
        "rank = RankProcess(**args, stdout=out, stderr=out)\n"
        "pids = [z.spawn(rank, print)]\n"
        "print(z.pid, *pids, flush=True)\ntime.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", owner], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 2
        assert until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        pids.append(int((tmp_path / "pid").read_text()))
        assert all(alive(pid) for pid in pids)
        process.kill()
    assert until(lambda: not any(alive(pid) for pid in pids))
