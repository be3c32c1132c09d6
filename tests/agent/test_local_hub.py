"""Which hub a run joins, and how long it keeps its own."""

import json
import os

import pytest

from pulsetrain.agent.launch_options import HubOptions
from pulsetrain.agent.local_hub import HubFacts, _await_facts, known_hub, wait_for_other_jobs
from pulsetrain.core.errors import PulsetrainError, Unavailable
from pulsetrain.protocol.client import HubAddress

GONE = 2**22 + 1  # above the largest pid


def serves(folder, url, pid=None):
    """A hub serves the folder, or did: `pid`."""
    folder.mkdir(exist_ok=True)
    facts = HubFacts(url=url, token=f"token of {url}", pid=pid or os.getpid(), dashboard="")
    (folder / "hub.json").write_text(json.dumps(facts))
    return HubAddress(url=url, token=f"token of {url}")


@pytest.fixture
def environ(tmp_path):
    return {"PULSETRAIN_DATA": str(tmp_path / "default")}


def test_without_any_hub_there_is_none(tmp_path, environ):
    assert known_hub(HubOptions(), None, environ) is None
    assert known_hub(HubOptions(), tmp_path / "given", environ) is None


def test_the_hub_that_serves_the_given_folder_goes_before_the_environments(tmp_path, environ):
    hub = serves(tmp_path / "given", "http://given:1")
    environ |= {"PULSETRAIN_HUB": "http://environ:1", "PULSETRAIN_TOKEN": "t"}
    assert known_hub(HubOptions(), tmp_path / "given", environ) == hub


def test_the_environments_hub_goes_before_the_default_folders(tmp_path, environ):
    hub = serves(tmp_path / "default", "http://default:1")
    assert known_hub(HubOptions(), None, environ) == hub
    environ |= {"PULSETRAIN_HUB": "http://environ:1", "PULSETRAIN_TOKEN": "t"}
    assert known_hub(HubOptions(), None, environ) == HubAddress(url="http://environ:1", token="t")


def test_a_named_hub_goes_before_all(tmp_path, environ):
    serves(tmp_path / "given", "http://given:1")
    named = HubOptions(url="http://named:1", token="mine")
    assert known_hub(named, tmp_path / "given", environ) == HubAddress(url="http://named:1", token="mine")


def test_a_hub_that_was_killed_is_not_known(tmp_path, environ):
    serves(tmp_path / "given", "http://given:1", pid=GONE)
    assert known_hub(HubOptions(), tmp_path / "given", environ) is None
    environ |= {"PULSETRAIN_HUB": "http://environ:1", "PULSETRAIN_TOKEN": "t"}
    assert known_hub(HubOptions(), tmp_path / "given", environ) == HubAddress(
        url="http://environ:1", token="t"
    )


class Process:
    """A process as `subprocess` shows it."""

    def __init__(self, returncode=None):
        self.pid, self.returncode = GONE + 1, returncode

    def poll(self):
        return self.returncode


def test_the_file_of_an_earlier_hub_is_not_the_new_hubs(tmp_path):
    serves(tmp_path, "http://old:1", pid=GONE)
    with pytest.raises(PulsetrainError, match=r"did not start in 0\.01 s"):
        _await_facts(Process(), tmp_path, 0.01)
    serves(tmp_path, "http://new:1", pid=Process().pid)
    assert _await_facts(Process(), tmp_path, 10)["url"] == "http://new:1"


def test_a_hub_that_ends_at_once_is_quoted(tmp_path):
    (tmp_path / "hub.log").write_text("starting\nport 80 is in use\n")
    with pytest.raises(PulsetrainError, match="ended with status 2: port 80 is in use"):
        _await_facts(Process(returncode=2), tmp_path, 10)


class Client:
    """Answers with one status after the other."""

    def __init__(self, *jobs):
        self.answers = list(jobs)

    def status(self):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return {"jobs": [{"job": job, "state": state} for job, state in answer.items()]}


def test_a_hub_stays_while_other_jobs_run_on_it():
    told, slept = [], []
    client = Client(
        {"mine": "running", "theirs": "running"},
        {"mine": "finished", "theirs": "running"},
        {"mine": "finished", "theirs": "failed"},
    )
    wait_for_other_jobs(client, "mine", told.append, slept.append)
    assert len(slept) == 2
    assert told == ["the hub of this run stays for job theirs; Ctrl-C ends it"]


@pytest.mark.parametrize("answer", [{"mine": "running"}, Unavailable("gone")])
def test_nobody_else_is_waited_for(answer):
    wait_for_other_jobs(Client(answer), "mine", print, lambda _: pytest.fail("it waited"))
