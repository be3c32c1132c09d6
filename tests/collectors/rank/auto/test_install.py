"""The automatic instrumentation is put in part by part, and can be turned off."""

from __future__ import annotations

import json
import types

import pytest

from pulsetrain.collectors.rank.auto import install


@pytest.fixture
def installed(monkeypatch):
    """Parts that note that they were installed. The second one fails."""
    names = []

    def load(name):
        def put_in(auto):
            if name == "broken":
                raise RuntimeError("another version of torch")
            names.append(name)

        return types.SimpleNamespace(install=put_in)

    monkeypatch.setattr(install, "PARTS", ("first", "broken", "last"))
    monkeypatch.setattr(install.importlib, "import_module", load)
    return names


def test_a_part_that_fails_is_counted_and_the_others_work(watched, installed):
    install.install(watched.handle)
    assert installed == ["first", "last"]
    assert watched.errors == 1


def test_it_can_be_turned_off(monkeypatch, watched, installed):
    monkeypatch.setenv("PULSETRAIN_AUTO", "0")
    install.install(watched.handle)
    assert installed == []
    assert json.loads(watched.reader.description())["auto"] == "off"
