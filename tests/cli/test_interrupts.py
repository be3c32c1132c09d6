"""Ctrl-C while modules are imported."""

import os
import signal
import threading

import pytest

from pulsetrain.cli.interrupts import importing


@pytest.fixture(autouse=True)
def restored():
    """Ctrl-C as in a terminal, also where the tests were started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_the_process_with_status_130_while_modules_are_imported(monkeypatch):
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    with importing():
        signal.raise_signal(signal.SIGINT)
    assert ended == [130]


def test_afterwards_ctrl_c_does_what_it_did_before():
    with importing():
        pass
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_process_that_ignores_ctrl_c_keeps_ignoring_it():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with importing():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_another_thread_leaves_signals_alone():
    done = []

    def work():
        with importing():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]
