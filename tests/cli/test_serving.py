"""`pulsetrain serve`: what its options mean to the hub."""

import signal
from pathlib import Path

import pytest

import pulsetrain.core.log
import pulsetrain.hub.serve


@pytest.fixture
def served(monkeypatch):
    """Where and with which settings the hub was started, instead of starting one."""
    calls = []
    monkeypatch.setattr(pulsetrain.core.log, "configure", lambda **_: None)
    monkeypatch.setattr(
        pulsetrain.hub.serve,
        "serve",
        lambda folder, settings, say, ends_on: calls.append((folder, settings, ends_on)),
    )
    return calls


def test_without_options_the_defaults_hold(cli, served, tmp_path):
    assert cli("serve").exception is None
    folder, settings, _ = served[0]
    assert folder == tmp_path / "no-hub-here"
    assert (settings.hub.host, settings.hub.port, settings.hub.dashboard) == ("127.0.0.1", 8780, True)
    assert settings.policy.observe_only is False


def test_options_go_before_the_file(cli, served, tmp_path):
    file = tmp_path / "hub.toml"
    file.write_text('[hub]\nport = 1\nhost = "127.0.0.2"\n[controller]\nobserve_only = true\n')
    cli("serve", "--data", tmp_path / "data", "--config", file, "--port", 0, "--no-dashboard")
    folder, settings, _ = served[0]
    assert folder == tmp_path / "data"
    assert (settings.hub.host, settings.hub.port, settings.hub.dashboard) == ("127.0.0.2", 0, False)
    assert settings.policy.observe_only is True


def test_a_home_folder_may_be_written_with_a_tilde(cli, served):
    cli("serve", "--data", "~/pulsetrain")
    assert served[0][0] == Path.home() / "pulsetrain"


def test_a_relative_folder_is_below_the_current_one(cli, served):
    cli("serve", "--data", "here")
    assert served[0][0] == Path.cwd() / "here"


def test_observe_only_is_a_flag_too(cli, served):
    cli("serve", "--observe-only")
    assert served[0][1].policy.observe_only is True


@pytest.mark.parametrize(
    ("words", "ends_on"), [([], (signal.SIGINT, signal.SIGTERM)), (["--of-run"], (signal.SIGINT,))]
)
def test_the_hub_of_a_run_is_ended_by_the_run_and_not_by_a_scheduler(cli, served, words, ends_on):
    cli("serve", *words)
    assert served[0][2] == ends_on
