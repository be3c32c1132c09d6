"""How a rank ends and what it prints. Whole ranks are in test_zygote."""

import atexit
import gzip
import io
import os
import py_compile
import signal
import subprocess
import sys
import threading

import pyarrow.parquet
import pytest

from pulsetrain.agent.processes import rank_main
from pulsetrain.agent.processes.rank_main import LossyFile, exit_code, script_traceback


@pytest.mark.parametrize(
    ("status", "code", "printed"),
    [
        (None, 0, ""),
        (0, 0, ""),
        (7, 7, ""),
        (-1, 255, ""),
        (256, 0, ""),
        ("too few ranks", 1, "too few ranks\n"),
    ],
)
def test_exit_codes_are_those_of_python(status, code, printed, capsys):
    assert exit_code(status) == code
    assert capsys.readouterr().err == printed


def test_what_a_script_left_in_the_buffer_of_an_open_file_is_written(tmp_path, monkeypatch):
    ended = []
    monkeypatch.setattr(threading, "_shutdown", lambda: None)
    monkeypatch.setattr(atexit, "_run_exitfuncs", lambda: None)
    monkeypatch.setattr(rank_main, "_close_archives", lambda: None)  # pytest's own stay open
    monkeypatch.setattr(os, "_exit", ended.append)
    with (tmp_path / "log.csv").open("w") as log, (tmp_path / "raw").open("wb") as raw:
        log.write("1,0.5\n")
        raw.write(b"x")
        rank_main._exit(3)
        assert (tmp_path / "log.csv").read_text() == "1,0.5\n"
        assert (tmp_path / "raw").read_bytes() == b"x"
    assert ended == [3]


@pytest.fixture
def main(monkeypatch):
    """A script may take the place of `__main__`, of the arguments and of the search path."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_an_interrupt_that_the_script_does_not_catch_ends_it_by_that_signal(tmp_path, main, capsys):
    (tmp_path / "script.py").write_text("raise KeyboardInterrupt\n")
    assert rank_main._run("script", str(tmp_path / "script.py")) == -signal.SIGINT
    assert capsys.readouterr().err.endswith("KeyboardInterrupt\n")


def test_an_error_is_shown_though_the_scripts_own_hook_for_errors_fails(tmp_path, main, monkeypatch, capsys):
    (tmp_path / "script.py").write_text(
        "import sys\ndef hook(*_):\n    raise OSError('no logger')\nsys.excepthook = hook\n1 / 0\n"
    )
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    assert rank_main._run("script", str(tmp_path / "script.py")) == 1
    said = capsys.readouterr().err
    assert "OSError: no logger" in said
    assert said.endswith("ZeroDivisionError: division by zero\n")


def test_a_hook_for_errors_may_choose_the_exit_code(tmp_path, main, monkeypatch):
    (tmp_path / "script.py").write_text("import sys\nsys.excepthook = lambda *_: sys.exit(5)\n1 / 0\n")
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    assert rank_main._run("script", str(tmp_path / "script.py")) == 5


def test_a_rank_whose_folder_is_gone_says_so(tmp_path, monkeypatch, capfd):
    ended = []
    monkeypatch.setattr(rank_main, "_exit", lambda code, _: ended.append(code))
    monkeypatch.setattr(rank_main, "_open_output", lambda *_: None)
    request = {"op": "spawn", "env": {}, "file_names": [], "cwd": str(tmp_path / "gone")}
    rank_main.run_forked(request, [1, 2])
    assert ended == [1]
    last = capfd.readouterr().err.splitlines()[-1]
    assert last == f"FileNotFoundError: [Errno 2] No such file or directory: '{tmp_path / 'gone'}'"


def test_the_last_line_of_a_script_that_silenced_itself_for_a_while_is_there():
    code = (
        "import os, signal, sys; from pulsetrain.agent.processes import rank_main\n"
        "rank_main._open_output(os.dup(1), os.dup(2))\n"
        "sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__\n"
        "print('last'); print('words', file=sys.stderr); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGKILL, "last\n", "words\n")


def test_where_the_signal_is_blocked_the_status_is_a_shells(monkeypatch):
    ended = []
    monkeypatch.setattr(threading, "_shutdown", lambda: None)
    monkeypatch.setattr(atexit, "_run_exitfuncs", lambda: None)
    monkeypatch.setattr(rank_main, "_close_archives", lambda: None)  # pytest's own stay open
    monkeypatch.setattr(rank_main, "_end_by", lambda signum: None)
    monkeypatch.setattr(os, "_exit", ended.append)
    rank_main._exit(-signal.SIGINT)
    assert ended == [130]


def test_what_a_full_disk_refuses_counts_as_written():
    with LossyFile(os.open("/dev/full", os.O_WRONLY), "w") as full:
        assert full.write(b"lost") == 4


def test_other_errors_of_a_log_file_are_raised(tmp_path):
    (tmp_path / "log").touch()
    with (
        LossyFile(os.open(tmp_path / "log", os.O_RDONLY), "r") as read_only,
        pytest.raises(OSError, match="not"),
    ):
        read_only.write(b"x")


def test_a_traceback_begins_where_the_script_does():
    def script():
        raise ValueError("boom")

    try:
        script()
    except ValueError as error:
        whole = error.__traceback__
    assert script_traceback(whole) is whole
    assert script_traceback(None) is None


def test_a_script_finds_its_folder_after_it_has_left_it(tmp_path, monkeypatch, main):
    (tmp_path / "script.py").write_text(
        "import os\nos.chdir('/')\nraise SystemExit(0 if os.path.exists(__file__) else 1)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert rank_main._run("script", "script.py") == 0


LATE = """
from __future__ import annotations
import atexit, multiprocessing, pathlib, pickle, threading, time

class Config:
    pass

def save(name):
    pathlib.Path(name).write_bytes(pickle.dumps(Config()))

def later():
    threading.main_thread().join()
    save("by_thread")

if __name__ == "__main__":
    atexit.register(save, "at_exit")
    threading.Thread(target=later).start()
    child = multiprocessing.get_context("spawn").Process(target=save, args=("by_child",))
    child.start()
    child.join()
"""


def run_as_a_rank(mode, target, folder):
    """Run a script as a forked rank does, from its first line to its last exit handler."""
    code = (
        "import gc, sys; from pulsetrain.agent.processes import rank_main\n"
        "gc.freeze(); frozen = gc.get_freeze_count()\n"
        f"sys.argv = [{target!r}, '--lr']; rank_main._exit(rank_main._run({mode!r}, {target!r}), frozen)"
    )
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("mode", "target"), [("script", "late.py"), ("module", "late")])
def test_what_outlives_the_script_can_still_pickle_its_classes(tmp_path, mode, target):
    """Threads that save in the background, exit handlers that save at last, and children."""
    (tmp_path / "late.py").write_text(LATE)
    done = run_as_a_rank(mode, target, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert {path.name for path in tmp_path.iterdir()} >= {"by_thread", "at_exit", "by_child"}


TABLES = """
import gzip
import h5py, pyarrow, pyarrow.parquet

table = pyarrow.table({"loss": [0.5]})
writer = pyarrow.parquet.ParquetWriter("losses.parquet", table.schema)
packed = pyarrow.parquet.ParquetWriter(gzip.open("losses.gz", "wb"), table.schema)
for each in (writer, packed):
    each.write_table(table)
file = h5py.File("losses.h5", "w")
"""
H5PY = """
import pathlib

class File:
    def __init__(self, name, mode):
        self.name = name

    def close(self):
        pathlib.Path(self.name).write_text("whole")
"""


def test_tables_that_the_script_left_open_are_whole(tmp_path):
    (tmp_path / "tables.py").write_text(TABLES)
    (tmp_path / "h5py.py").write_text(H5PY)  # h5py is none of ours
    done = run_as_a_rank("script", "tables.py", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    plain = (tmp_path / "losses.parquet").read_bytes()
    for table in (plain, gzip.decompress((tmp_path / "losses.gz").read_bytes())):
        assert pyarrow.parquet.read_table(io.BytesIO(table)).to_pydict() == {"loss": [0.5]}
    assert (tmp_path / "losses.h5").read_text() == "whole"


FROZEN = """
import gc, gzip

log = open("log.csv", "w")
log.write("1,0.5")
packed = gzip.open("log.gz", "wt")
packed.write("2,0.4")
gc.freeze()
"""


def test_files_that_were_opened_before_the_script_froze_its_objects_are_written(tmp_path):
    (tmp_path / "frozen.py").write_text(FROZEN)
    done = run_as_a_rank("script", "frozen.py", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "log.csv").read_text() == "1,0.5"
    assert gzip.decompress((tmp_path / "log.gz").read_bytes()) == b"2,0.4"


SEEN = """
import sys
print(__name__, __file__, __package__, __spec__ and __spec__.name, sys.argv, sys.path[0], __loader__.path)
"""


@pytest.mark.parametrize(
    ("mode", "target", "file", "package", "spec"),
    [
        ("script", "seen.py", "seen.py", None, None),
        ("script", "folder", "folder/__main__.py", "", "__main__"),
        ("module", "seen", "seen.py", "", "seen"),
        ("module", "folder", "folder/__main__.py", "folder", "folder.__main__"),
    ],
)
def test_a_script_knows_of_itself_what_python_tells_it(tmp_path, mode, target, file, package, spec):
    (tmp_path / "folder").mkdir()
    for path in ("seen.py", "folder/__main__.py"):
        (tmp_path / path).write_text(SEEN)
    if (mode, target) == ("script", "folder"):  # python itself keeps such a path as it is typed
        target = str(tmp_path / target)
    done = run_as_a_rank(mode, target, tmp_path)
    program = target if mode == "script" else str(tmp_path / file)
    first = program if mode == "script" and target != "seen.py" else tmp_path
    path = tmp_path / file
    assert done.stderr == ""
    assert done.stdout.strip() == f"__main__ {path} {package} {spec} {[program, '--lr']} {first} {path}"


def test_a_compiled_script_has_the_loader_that_python_gives_it(tmp_path):
    (tmp_path / "seen.py").write_text("print(type(__loader__).__name__, __loader__.name)")
    py_compile.compile(str(tmp_path / "seen.py"), str(tmp_path / "seen.pyc"))
    assert run_as_a_rank("script", "seen.pyc", tmp_path).stdout == "SourcelessFileLoader __main__\n"


@pytest.mark.integration
def test_frames_above_the_script_are_left_out(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("1 / 0\n")
    code = (
        "import gc, sys; from pulsetrain.agent.processes import rank_main\n"
        "gc.freeze(); frozen = gc.get_freeze_count()\n"
        f"sys.exit(rank_main._run('script', {str(path)!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[1] == f'  File "{path}", line 1, in <module>'


@pytest.mark.integration
def test_a_worker_answers_with_its_value_or_its_error():
    for target, answer in (
        ("json:loads", b'{"value": [1]}'),
        ("json:no_such_function", b'{"error": "AttributeError'),
    ):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            rank_main._run_worker({"op": "call", "id": 1, "target": target, "kwargs": {"s": "[1]"}}, writing)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as stream:
            assert stream.read().startswith(answer)
        os.waitpid(pid, 0)
