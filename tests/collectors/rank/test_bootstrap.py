"""Hooks of a freshly forked rank: none may stop the script."""

from __future__ import annotations

import types

import pytest

from pulsetrain.collectors.rank import bootstrap
from pulsetrain.collectors.rank.handle import Handle


@pytest.fixture
def hooks(monkeypatch):
    """Modules that note whom they were installed for."""
    installed = []

    def load(name):
        def install(handle):
            if name == "broken":
                raise RuntimeError("another version of torch")
            installed.append(name)

        return types.SimpleNamespace(install=install)

    monkeypatch.setattr(bootstrap, "HOOKS", ("first", "broken", "last"))
    monkeypatch.setattr(bootstrap.importlib, "import_module", load)
    return installed


def test_a_hook_that_fails_is_counted_and_the_others_are_installed(monkeypatch, hooks, watched):
    monkeypatch.setattr(bootstrap, "process_handle", lambda: watched.handle)
    bootstrap.install()
    assert hooks == ["first", "last"]
    assert watched.errors == 1


def test_without_an_agent_nothing_is_hooked(monkeypatch, hooks):
    monkeypatch.setattr(bootstrap, "process_handle", lambda: Handle(None))
    bootstrap.install()
    assert hooks == []
