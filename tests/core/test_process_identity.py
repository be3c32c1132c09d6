"""A pid in a file, and the process that has it now."""

import os

import pytest

from pulsetrain.core.process_identity import is_process, process_identity

ME = process_identity(os.getpid())
BOOT, NAMESPACE, STARTED = ME.split()


def test_a_process_knows_itself_and_is_known_without_a_word():
    assert is_process(os.getpid(), ME)
    assert is_process(os.getpid(), "")
    assert is_process(os.getppid(), process_identity(os.getppid()))


OTHERS = {
    "another machine, or another boot": f"{'0' * 36} {NAMESPACE} {STARTED}",
    "another container": f"{BOOT} pid:[1] {STARTED}",
    "a later process": f"{BOOT} {NAMESPACE} {int(STARTED) - 1}",
}


@pytest.mark.parametrize("who", OTHERS)
def test_another_process_with_the_same_pid_is_not_taken_for_it(who):
    assert not is_process(os.getpid(), OTHERS[who])


def test_nobody_has_a_pid_above_the_largest():
    assert not is_process(2**22 + 1, ME)
    assert process_identity(2**22 + 1) == ""
