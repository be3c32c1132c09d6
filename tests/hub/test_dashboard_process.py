"""A command that ends with the hub that started it."""

import sys

import pytest

from pulsetrain.hub import dashboard_process


def test_the_process_becomes_the_command_once_it_is_tied_to_its_parent(monkeypatch):
    calls = []
    monkeypatch.setattr(sys, "argv", ["dashboard_process", "42", "streamlit", "run", "app.py"])
    monkeypatch.setattr(dashboard_process, "die_with", lambda pid: calls.append(("parent", pid)))
    monkeypatch.setattr(dashboard_process.os, "execvp", lambda file, args: calls.append((file, args)))
    dashboard_process.main()
    assert calls == [("parent", 42), ("streamlit", ["streamlit", "run", "app.py"])]


def test_without_a_parent_nothing_is_run(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["dashboard_process", "nobody", "streamlit"])
    with pytest.raises(ValueError, match="nobody"):
        dashboard_process.main()
