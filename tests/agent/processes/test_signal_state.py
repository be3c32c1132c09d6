"""What processes do with a signal, as /proc says."""

import os
import signal

import pytest

from pulsetrain.agent.processes.signal_state import ignores, listeners, listens

PROC = {
    1: ("", "0000000000000000", "0000000000000000", "2 3"),  # a shell
    2: ("", "0000000000000200", "0000000000000000", "4"),  # catches SIGUSR1
    3: ("", "0000000000000000", "0000000000000200", ""),  # ignores it
    4: ("", "0000000000000200", "0000000000000000", ""),
}


@pytest.fixture
def root(tmp_path):
    for pid, (_, caught, ignored, children) in PROC.items():
        task = tmp_path / f"proc/{pid}/task/{pid}"
        task.mkdir(parents=True)
        (task / "children").write_text(children)
        status = f"Name:\tpython\nSigBlk:\t{0:016x}\nSigIgn:\t{ignored}\nSigCgt:\t{caught}\n"
        (tmp_path / f"proc/{pid}/status").write_text(status)
    return tmp_path


def test_a_handler_and_a_signal_that_is_ignored_are_told_apart(root):
    assert [listens(pid, signal.SIGUSR1, root) for pid in PROC] == [False, True, False, True]
    assert [ignores(pid, signal.SIGUSR1, root) for pid in PROC] == [False, False, True, False]
    assert not listens(2, signal.SIGUSR2, root)


def test_of_what_a_shell_has_started_the_nearest_that_listens_are_meant(root):
    assert listeners(1, signal.SIGUSR1, root) == [2]
    assert listeners(3, signal.SIGUSR1, root) == []


def test_a_process_that_has_ended_does_nothing(root):
    assert (listens(9, 1, root), ignores(9, 1, root), listeners(9, 1, root)) == (False, False, [])


def test_the_kernel_says_it_of_this_process():
    before = {each: signal.getsignal(each) for each in (signal.SIGUSR1, signal.SIGUSR2)}
    try:
        signal.signal(signal.SIGUSR1, lambda *_: None)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        assert listens(os.getpid(), signal.SIGUSR1)
        assert ignores(os.getpid(), signal.SIGUSR2)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
