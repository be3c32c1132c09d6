"""Which hub a run joins, and how long it keeps its own."""

import errno
import json
import os
import resource
from pathlib import Path

import pytest

from pulsetrain.agent import local_hub
from pulsetrain.agent.launch_options import HubOptions
from pulsetrain.agent.local_hub import HubFacts, KnownHub, _await_facts, join_hub, wait_for_guests
from pulsetrain.core.errors import PulsetrainError, UsageError
from pulsetrain.protocol.client import HubAddress

GONE = 2**22 + 1  # above the largest pid


def serves(folder, url, pid=None):
    """A hub serves the folder, or did: `pid`."""
    folder.mkdir(exist_ok=True)
    facts = HubFacts(url=url, token=f"token of {url}", pid=pid or os.getpid(), dashboard="")
    (folder / "hub.json").write_text(json.dumps(facts))
    return HubAddress(url=url, token=f"token of {url}")


def known_hub(*args):
    """The address of the known hub."""
    hub = local_hub.known_hub(*args)
    return hub and hub.address


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


def test_a_given_folder_without_a_hub_leaves_the_default_folders(tmp_path, environ):
    hub = serves(tmp_path / "default", "http://default:1")
    assert known_hub(HubOptions(), tmp_path / "given", environ) == hub


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


@pytest.fixture
def full_disk():
    """No file takes a byte, though empty ones can be made."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_of_a_hub_that_could_write_nothing_the_disk_is_named(tmp_path, full_disk):
    (tmp_path / "hub.log").touch()
    with pytest.raises(PulsetrainError, match=f"ended with status 1: {tmp_path}: {os.strerror(errno.EFBIG)}"):
        _await_facts(Process(returncode=1), tmp_path, 10)


def test_a_process_that_has_the_pid_of_another_machines_hub_is_no_hub(tmp_path, environ):
    serves(tmp_path / "given", "http://there:1")
    file = tmp_path / "given" / "hub.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"process": "another-boot pid:[1] 7"}))
    assert known_hub(HubOptions(), tmp_path / "given", environ) is None


def guest(folder, pid):
    (folder / "guests").mkdir(exist_ok=True)
    (folder / "guests" / str(pid)).touch()
    return folder / "guests" / str(pid)


def test_a_hub_stays_while_other_runs_use_it(tmp_path):
    serves(tmp_path, "http://own:1")
    mark, lines, slept = guest(tmp_path, os.getppid()), [], []

    def sleep(_):
        slept.append((tmp_path / "hub.json").exists())
        if len(slept) == 2:
            mark.unlink()

    wait_for_guests(tmp_path, lines.append, sleep)
    assert slept == [True, True]
    assert len(lines) == 1
    assert not (tmp_path / "hub.json").exists(), "a run that comes now must not find it"


def test_ctrl_c_while_other_runs_use_the_hub_says_what_it_waits_for(tmp_path):
    mark, lines, slept, pid = guest(tmp_path, os.getppid()), [], [], os.getppid()

    def sleep(_):
        slept.append(len(lines))
        if len(slept) == 5:
            mark.unlink()

    wait_for_guests(tmp_path, lines.append, sleep, interrupted=lambda: len(slept) >= 2)
    uses = f"other runs use the hub of this run (pid {pid}): it stays until they end; "
    assert lines == [
        f"{uses}Ctrl-C twice ends it",
        f"{uses}Ctrl-C again ends it now, and they go on without a hub",
    ]
    assert slept == [1, 1, 2, 2, 2]


def test_a_run_that_was_killed_is_not_waited_for(tmp_path):
    guest(tmp_path, GONE)
    guest(tmp_path, os.getpid())
    wait_for_guests(tmp_path, print, lambda _: pytest.fail("it waited"))


def test_a_run_that_joins_at_the_last_moment_keeps_the_hub(tmp_path, monkeypatch):
    answers = [[], [17], [], []]
    monkeypatch.setattr(local_hub, "_guests", lambda folder: answers.pop(0))
    wait_for_guests(tmp_path, lambda line: None, lambda _: None)
    assert answers == []


def test_a_run_that_joins_is_a_guest_until_it_ends(tmp_path, environ):
    hub = serves(tmp_path / "given", "http://given:1")
    marks = tmp_path / "given" / "guests"
    with join_hub(HubOptions(), tmp_path / "given", environ) as joined:
        assert joined == hub
        assert [mark.name for mark in marks.iterdir()] == [str(os.getpid())]
    assert list(marks.iterdir()) == []


def test_a_run_that_is_killed_while_it_joins_leaves_no_mark_that_could_be_anybodys(
    tmp_path, environ, monkeypatch
):
    def killed(self, target):
        raise KeyboardInterrupt

    serves(tmp_path / "given", "http://given:1")
    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KeyboardInterrupt), join_hub(HubOptions(), tmp_path / "given", environ):
        pass
    monkeypatch.setattr(os, "getpid", lambda: GONE)
    wait_for_guests(tmp_path / "given", print, lambda _: pytest.fail("it waited"))


def test_a_run_whose_mark_a_full_disk_refuses_is_a_guest_all_the_same(tmp_path, environ, monkeypatch):
    def full(path, text, *, give):
        raise OSError(errno.ENOSPC, "No space left on device")

    serves(tmp_path / "given", "http://given:1")
    monkeypatch.setattr(local_hub, "replace_private", full)
    with join_hub(HubOptions(), tmp_path / "given", environ):
        assert [mark.name for mark in (tmp_path / "given" / "guests").iterdir()] == [str(os.getpid())]


def test_a_disk_that_became_read_only_does_not_change_how_a_run_ended(tmp_path, environ, monkeypatch):
    def refused(self, *, missing_ok=False):
        raise OSError(errno.EROFS, "Read-only file system")

    serves(tmp_path / "given", "http://given:1")
    with join_hub(HubOptions(), tmp_path / "given", environ) as joined:
        assert joined is not None
        monkeypatch.setattr(Path, "unlink", refused)
    monkeypatch.setattr(local_hub, "_guests", lambda folder: [])
    wait_for_guests(tmp_path / "given", lambda line: None, lambda _: None)


def test_a_hub_that_ends_while_a_run_joins_is_not_joined(tmp_path, environ, monkeypatch):
    serves(tmp_path / "given", "http://given:1")
    known = [KnownHub(address=HubAddress(url="http://given:1", token=""), folder=tmp_path / "given"), None]
    monkeypatch.setattr(local_hub, "known_hub", lambda *_: known.pop(0))
    with join_hub(HubOptions(), tmp_path / "given", environ) as joined:
        assert joined is None


def test_a_named_hub_has_no_guests(tmp_path, environ):
    named = HubOptions(url="http://named:1", token="mine")
    with join_hub(named, tmp_path, environ) as joined:
        assert joined == HubAddress(url="http://named:1", token="mine")
    assert list(tmp_path.iterdir()) == []


def test_without_a_home_folder_a_run_needs_a_data_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "expanduser", no_home)
    with pytest.raises(UsageError, match="no home folder: give --data DIR"):
        known_hub(HubOptions(), None, {})
    assert known_hub(HubOptions(), tmp_path, {}) is None
    assert known_hub(HubOptions(), None, {"PULSETRAIN_DATA": str(tmp_path)}) is None


def no_home(path):
    """As pathlib answers a user without HOME and without an entry in the list of users."""
    if str(path).startswith("~"):
        raise RuntimeError("Could not determine home directory.")
    return path
