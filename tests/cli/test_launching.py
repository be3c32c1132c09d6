"""`pulsetrain run`, `agent` and `demo`: what reaches the launcher, and how the command ends."""

import json
import subprocess
import sys

import pytest

import pulsetrain.agent.launch
import pulsetrain.core.log
import pulsetrain.demo.main
from pulsetrain.agent.outcome import Outcome
from pulsetrain.core.errors import UsageError


@pytest.fixture
def launched(monkeypatch):
    """The options of each launch. The job ends with the outcome in `ends`."""

    class Launched(list):
        ends = Outcome(exit_code=0, reason="job finished")

    calls = Launched()

    def launch(options, say):
        calls.append(options)
        return calls.ends

    monkeypatch.setattr(pulsetrain.core.log, "configure", lambda **_: None)
    monkeypatch.setattr(pulsetrain.agent.launch, "launch", launch)
    return calls


def status(done):
    return done.exit_code


def test_run_takes_torchruns_flags_and_passes_the_rest_to_the_script(cli, launched):
    done = cli("run", "--nproc_per_node", 2, "train.py", "--steps", 10)
    assert status(done) == 0
    assert launched[0].program.argv == ("train.py", "--steps", "10")
    assert launched[0].node.nproc_per_node == 2
    assert (launched[0].hub.required, launched[0].node.standby) == (False, False)
    assert "pulsetrain: job finished" in done.output


def test_an_agent_needs_a_hub_and_may_wait_as_a_standby(cli, launched):
    cli("agent", "--standby", "train.py")
    assert (launched[0].hub.required, launched[0].node.standby) == (True, True)


@pytest.mark.parametrize(("code", "ends"), [(3, 3), (-9, 137), (0, 0)])
def test_the_exit_status_is_the_jobs(cli, launched, code, ends):
    launched.ends = Outcome(exit_code=code, reason="ended")
    assert status(cli("run", "train.py")) == ends


def test_json_is_the_outcome(cli, launched):
    report = json.loads(cli("run", "--json", "train.py").stdout)
    assert report["exit_code"] == 0
    assert report["reason"] == "job finished"


UNREAD = """
import os, sys
from pulsetrain.agent import launch
from pulsetrain.agent.outcome import Outcome
from pulsetrain.cli import main

ended = Outcome(exit_code=int(sys.argv[1]), reason="ended")
launch.launch = lambda options, say: ended
for fd in (1, 2):
    reading, writing = os.pipe()
    os.close(reading)
    os.dup2(writing, fd)
sys.argv = ["pulsetrain", "run", *sys.argv[2:], "-m", "json"]
main()
"""


@pytest.mark.integration
@pytest.mark.parametrize(("words", "code"), [(["--json"], 0), (["--json"], 7), ([], 7), ([], 2)])
def test_the_exit_status_is_the_jobs_also_where_nobody_reads_what_is_said(words, code):
    assert subprocess.run([sys.executable, "-c", UNREAD, str(code), *words]).returncode == code


def test_a_flag_that_would_change_what_happens_is_refused(cli, launched):
    done = cli("run", "--start-method", "spawn", "train.py")
    assert isinstance(done.exception, UsageError)
    assert not launched


@pytest.fixture
def demos(monkeypatch):
    """The options of each demo that was started."""
    calls = []

    def run(options, print_, publish):
        calls.append(options)
        print_("a line")
        if publish is not None:
            publish({"identical": True})
        return 1

    monkeypatch.setattr(pulsetrain.core.log, "configure", lambda **_: None)
    monkeypatch.setattr(pulsetrain.demo.main, "run", run)
    return calls


def test_the_demo_stays_up_and_returns_its_status(cli, demos):
    done = cli("demo", "--steps", 150, "--seed", 7)
    assert done.return_value == 1
    assert (demos[0].exit, demos[0].steps, demos[0].seed) == (False, 150, 7)
    assert done.stdout == "a line\n"


def test_with_json_the_demo_ends_and_prints_the_report_alone(cli, demos):
    done = cli("demo", "--json")
    assert demos[0].exit
    assert json.loads(done.stdout) == {"identical": True}
    assert done.stderr == "a line\n"
