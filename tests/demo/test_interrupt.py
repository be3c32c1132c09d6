"""An ending signal reaches the demo wherever it arrives."""

from __future__ import annotations

import os
import signal
import time

import pytest

from pulsetrain.demo.interrupt import END_SIGNALS, interruptible


class Ends:
    """Ends the process in its finaliser, where Python swallows what is raised."""

    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass


def signalled(number):
    os.kill(os.getpid(), number)
    time.sleep(40)


@pytest.mark.parametrize("number", END_SIGNALS)
def test_an_ending_signal_interrupts(number):
    with pytest.raises(KeyboardInterrupt), interruptible():
        signalled(number)


def test_an_interrupt_that_python_swallows_comes_again():
    def finalised():
        thing = Ends()
        del thing
        time.sleep(40)

    with pytest.raises(KeyboardInterrupt), interruptible():
        finalised()


def test_a_second_signal_does_not_disturb_the_clearing_up():
    cleared = []

    def clears_up():
        try:
            signalled(signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
            cleared.append(True)

    with pytest.raises(KeyboardInterrupt), interruptible():
        clears_up()
    assert cleared


def test_afterwards_signals_do_what_they_did():
    before = {number: signal.getsignal(number) for number in END_SIGNALS}
    with interruptible():
        pass
    assert {number: signal.getsignal(number) for number in END_SIGNALS} == before
