"""`pulsetrain run`: bad input, and whole runs with a hub of their own."""

import dataclasses
import os
import subprocess
import sys
import uuid

import pytest
from click.testing import CliRunner

from pulsetrain.agent import outcome
from pulsetrain.agent.launch import local_processes
from pulsetrain.agent.outcome import Outcome
from pulsetrain.cli import pulsetrain
from pulsetrain.core.errors import UsageError
from pulsetrain.protocol.messages import RankExit
from tests.agent.real_processes import TRAIN, until, with_environment

MARK = "PULSETRAIN_TEST_MARK"


@pytest.fixture
def refused(tmp_path, monkeypatch):
    """Runs a command line that cannot be used; its error."""
    monkeypatch.setenv("PULSETRAIN_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("PULSETRAIN_HUB", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")

    def refused(*words):
        result = CliRunner().invoke(pulsetrain, words, standalone_mode=False)
        assert result.exception is not None
        assert not list((tmp_path / "data").rglob("hub"))
        return " ".join(str(getattr(result.exception, "message", None) or result.exception).split())

    return refused


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--bogus", "train.py"], "--bogus"),
        (["nofile.py"], "script 'nofile.py': no such file"),
        (["--nnodes", "1:4", "train.py"], "--nnodes=1:4: a fixed number is needed"),
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
    ],
)
def test_what_cannot_be_used_is_named(refused, words, expected):
    assert expected in refused("run", *words)


def test_an_agent_needs_a_hub(refused):
    assert "give --hub URL" in refused("agent", "train.py")


@pytest.mark.parametrize(("text", "number"), [("3", 3), ("cpu", len(os.sched_getaffinity(0)))])
def test_processes_for_each_node(text, number):
    assert local_processes(text) == number


def _culprit(code, *lines):
    return RankExit(
        node="a", ts_ns=0, job="j", attempt=0, rank=3, pid=9, code=code, last_lines=lines or ("boom",)
    )


def test_the_culprit_is_the_first_that_failed_not_its_loudest_victim():
    killed = dataclasses.replace(_culprit(-9), last_lines=())
    victim = dataclasses.replace(_culprit(1, "Connection closed by peer"), rank=4)
    fine = dataclasses.replace(_culprit(0), rank=5)
    assert outcome.culprit([fine, killed, victim]) is killed
    assert outcome.culprit([fine]) is None


def test_of_usage_errors_the_one_with_words_is_shown():
    silent = dataclasses.replace(_culprit(2), last_lines=())
    says_why = _culprit(2, "train: needs 8 ranks")
    assert outcome.culprit([silent, says_why]) is says_why
    assert outcome.culprit([silent]) is silent


@pytest.mark.parametrize(("code", "status"), [(0, 0), (1, 1), (7, 7), (-9, 137), (-11, 139), (130, 130)])
def test_exit_status_is_as_a_shell_has_it(code, status):
    assert outcome.exit_status(Outcome(exit_code=code, reason="")) == status


def test_the_summary_names_rank_node_and_how_it_ended():
    text = outcome.summary(Outcome(exit_code=-9, reason="job failed", culprit=_culprit(-9, "one", "two")))
    assert text.splitlines() == [
        "job failed",
        "rank 3 on a (pid 9) was ended by SIGKILL; it last said:",
        "  | one",
        "  | two",
    ]


def test_a_usage_error_of_the_ranks_is_passed_on_as_one_line():
    with pytest.raises(UsageError, match=r"^train: needs 8 ranks$"):
        outcome.summary(
            Outcome(exit_code=2, reason="x", culprit=_culprit(2, "warning", "train: needs 8 ranks"))
        )


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
