"""`pulsetrain run`: bad input, and whole runs with a hub of their own."""

import json
import os
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from pulsetrain.agent.launch import _writable, node_folder, own_hub_folder
from pulsetrain.agent.launch_options import HubOptions, LaunchOptions, NodeOptions
from pulsetrain.agent.processes.rank import Program
from pulsetrain.cli import pulsetrain
from pulsetrain.protocol.client import find_hub
from tests.agent.real_processes import TRAIN, until, with_environment

MARK = "PULSETRAIN_TEST_MARK"


@pytest.fixture
def refused(tmp_path, monkeypatch):
    """Runs a command line that cannot be used; its error."""
    monkeypatch.setenv("PULSETRAIN_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("PULSETRAIN_HUB", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "typo.toml").write_text("[checkpoint]\nkeep_lasst = 3\n")

    def refused(*words):
        result = CliRunner().invoke(pulsetrain, words, standalone_mode=False)
        assert result.exception is not None
        assert not list((tmp_path / "data").rglob("hub.log"))
        return " ".join(str(getattr(result.exception, "message", None) or result.exception).split())

    return refused


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--bogus", "train.py"], "--bogus"),
        (["nofile.py"], "script 'nofile.py': no such file"),
        (["--nnodes", "4:1", "train.py"], "--nnodes=4:1: MIN is above MAX"),
        (["--nnodes", "1:4", "train.py"], "--nnodes=4 needs a hub that all nodes reach: give --hub URL"),
        (["--nnodes", "1:3", "--node-unit", "4", "train.py"], "--node-unit=4: --nnodes=1:3 allows no"),
        (
            ["--nnodes", "4:8", "--node-unit", "4", "--node-unit-min", "5", "train.py"],
            "--node-unit-min=5: allowed: 1 to --node-unit=4",
        ),
        (["--devices-per-node", "3", "train.py"], "--devices-per-node=3: allowed: 1 to 1"),
        (["--nnodes", "0", "train.py"], "--nnodes=0: allowed: a number from 1"),
        (["--nnodes", "2", "train.py"], "--nnodes=2 needs a hub that all nodes reach: give --hub URL"),
        (["--nproc-per-node", "many", "train.py"], "--nproc-per-node 'many': allowed: a number from 1"),
        (["--nnodes", "2", "--master_addr", "h", "train.py"], "--master-addr: the hub chooses"),
        (["--nnodes", "2", "--rdzv-endpoint", "h:1", "train.py"], "--rdzv-endpoint: the hub is"),
        (["--start-method", "fork", "train.py"], "--start-method: ranks are forked"),
        (["-m", "--no-python", "x"], "--module and --no-python exclude each other"),
        (["-m", "no_such_module"], "module 'no_such_module': not found"),
        (["--no-python", "no-such-program"], "program 'no-such-program': not found"),
        (["--standalone", "--hub", "http://h:1", "train.py"], "--standalone starts a hub of its own"),
        (["--local-ranks-filter", "0,x", "train.py"], "--local-ranks-filter=0,x"),
        (["--data", "/proc/nowhere", "train.py"], "data folder /proc/nowhere"),
        (["--log-dir", "/proc/nowhere", "train.py"], "log folder /proc/nowhere"),
        (["--config", "missing.toml", "train.py"], "configuration file missing.toml"),
        (["--config", "typo.toml", "train.py"], "typo.toml: unknown key checkpoint.keep_lasst"),
    ],
)
def test_what_cannot_be_used_is_named(refused, words, expected):
    assert expected in refused("run", *words)


def test_nodes_that_share_a_log_folder_may_start_at_once(tmp_path):
    def looks(_):
        for _ in range(100):
            assert _writable(tmp_path, "log", "--log-dir") == tmp_path

    with ThreadPoolExecutor(8) as nodes:
        list(nodes.map(looks, range(8)))
    assert list(tmp_path.iterdir()) == []


def test_an_agent_needs_a_hub(refused):
    assert "give --hub URL" in refused("agent", "train.py")


def _options(data=None, *, own=False):
    return LaunchOptions(
        program=Program(argv=("train.py",)),
        hub=HubOptions(own=own),
        node=NodeOptions(node="n0"),
        data=data,
        environ={"PULSETRAIN_DATA": "/home/data"},
    )


def test_a_hub_of_its_own_lives_in_the_folder_of_the_data_flag():
    options = _options(Path("/d"))
    assert own_hub_folder(options) == Path("/d")
    assert node_folder(options, Path("/d")) == Path("/d/nodes/train/n0")


def test_without_the_data_flag_each_run_with_a_hub_of_its_own_has_a_new_folder():
    for options, data in ((_options(), "/home/data"), (_options(Path("/d"), own=True), "/d")):
        folder = own_hub_folder(options)
        assert folder.parent == Path(data, "runs")
        assert folder.name.startswith("train-")
        assert node_folder(options, folder) == folder


@pytest.mark.parametrize("job", ["team/gpt", "名" * 85])
def test_the_hub_of_a_run_is_found_whatever_its_job_is_called(tmp_path, job):
    options = LaunchOptions(
        program=Program(argv=("train.py",)),
        node=NodeOptions(job=job),
        environ={"PULSETRAIN_DATA": str(tmp_path)},
    )
    folder = own_hub_folder(options)
    folder.mkdir(parents=True)
    (folder / "hub.json").write_text(json.dumps({"url": "http://h:1", "pid": os.getpid()}))
    assert find_hub(environ={"PULSETRAIN_DATA": str(tmp_path)}).url == "http://h:1"


def test_a_node_that_joins_a_hub_keeps_its_spool_in_the_data_folder():
    assert node_folder(_options(), None) == Path("/home/data/nodes/train/n0")


class Run:
    def __init__(self, folder, script, *words):
        path = folder / "script.py"
        path.write_text(script)
        self.mark = uuid.uuid4().hex
        environ = {k: v for k, v in os.environ.items() if not k.startswith("PULSETRAIN_")}
        done = subprocess.run(
            [sys.executable, "-m", "pulsetrain.cli", "run", *words[:-1], str(path), *words[-1]],
            env={**environ, MARK: self.mark, "PULSETRAIN_DATA": str(folder / "data")},
            capture_output=True,
            text=True,
            timeout=110,
        )
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
        assert until(lambda: not with_environment(MARK, self.mark))


@pytest.mark.integration
def test_a_job_runs_with_a_hub_of_its_own(tmp_path):
    run = Run(tmp_path, TRAIN, "--nproc_per_node=2", ["20"])
    assert run.code == 0, run.err
    assert sorted(run.out.splitlines()) == ["[0] rank 0 attempt 0", "[1] rank 1 attempt 0"]
    assert "dashboard  http://127.0.0.1:" in run.err
    assert run.err.splitlines()[-1] == "pulsetrain: job finished"


@pytest.mark.integration
def test_a_crash_is_relaunched_and_then_explained(tmp_path):
    script = "import os, time\nif os.environ['RANK'] == '1':\n    raise ValueError('boom')\ntime.sleep(60)\n"
    run = Run(tmp_path, script, "--nproc-per-node=2", "--max-restarts=1", [])
    assert run.code == 1
    assert run.err.count("[1] ValueError: boom") == 2
    assert "rank 1 on " in run.err
    assert run.err.splitlines()[-1] == "  | ValueError: boom"


@pytest.mark.integration
def test_a_usage_error_of_the_script_ends_the_run_at_once(tmp_path):
    script = (
        "import os, sys\nif os.environ['RANK'] == '0':\n    print('script: needs 8 ranks', file=sys.stderr)\n"
        "sys.exit(2)\n"
    )
    run = Run(tmp_path, script, "--nproc-per-node=2", [])
    assert run.code == 2
    assert run.err.splitlines()[-1] == "pulsetrain: script: needs 8 ranks"
    assert "attempt_1" not in {p.name for p in (tmp_path / "data").rglob("attempt_*")}


USER_SIGNAL = """
import os, pathlib, signal, time
parent = pathlib.Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]
if os.environ["RANK"] == "0":
    told = []
    signal.signal(signal.SIGUSR1, lambda *_: told.append("told"))
    os.kill(os.getppid(), signal.SIGUSR1)
    os.kill(int(parent), signal.SIGUSR1)
    while not told:
        time.sleep(0.01)
    print(told[0])
time.sleep(0.1)
"""


@pytest.mark.integration
def test_a_signal_of_the_users_own_reaches_the_ranks_that_have_a_handler(tmp_path):
    run = Run(tmp_path, USER_SIGNAL, "--nproc-per-node=2", [])
    assert run.code == 0, run.err
    assert run.out.splitlines() == ["[0] told"]


HUB_DIES = """
import glob, json, os, signal, sys, time
if os.environ["PULSETRAIN_ATTEMPT"] == "0":
    facts = json.load(open(glob.glob(os.environ["PULSETRAIN_DATA"] + "/runs/*/hub.json")[0]))
    os.kill(facts["pid"], signal.SIGKILL)
    sys.exit(3)
print("goes on")
"""


@pytest.mark.integration
def test_a_hub_of_its_own_that_was_killed_recovers_the_job(tmp_path):
    run = Run(tmp_path, HUB_DIES, [])
    assert run.code == 0, run.err
    assert run.out.splitlines() == ["[0] goes on"]


SCHEDULER_ENDS_ALL = """
import glob, json, os, pathlib, signal, time
hub = json.load(open(glob.glob(os.environ["PULSETRAIN_DATA"] + "/runs/*/hub.json")[0]))["pid"]
os.kill(hub, signal.SIGTERM)
time.sleep(2)
print("hub runs:", pathlib.Path(f"/proc/{hub}/environ").read_bytes() != b"")
"""


@pytest.mark.integration
def test_a_hub_of_its_own_outlives_the_sigterm_that_a_scheduler_sends_to_all(tmp_path):
    run = Run(tmp_path, SCHEDULER_ENDS_ALL, [])
    assert run.code == 0, run.err
    assert run.out.splitlines() == ["[0] hub runs: True"]
    log = next((tmp_path / "data").rglob("hub.log")).read_text()
    assert "Traceback" not in log
