"""A first signal ends an agent in order. Which ones hurry it, and when."""

import signal

import pytest

from pulsetrain.agent.end_signals import EndSignals, await_ranks
from tests.recovery.fakes import FakeClock

PATIENCE_S = 25.0


@pytest.fixture
def end():
    """An agent that persists its newest checkpoint for 25 s after the first signal."""

    class End:
        clock = FakeClock()
        asked, ended, forwarded = [], [], []

    End.signals = EndSignals(
        End.asked.append,
        patience_s=PATIENCE_S,
        forward=End.forwarded.append,
        also=[signal.SIGUSR2],
        clock=End.clock,
        end_now=End.ended.append,
    )
    return End


def test_a_repeated_sigterm_does_not_abort_the_persist(end):
    end.signals.handle(signal.SIGTERM)
    end.clock.now_s += PATIENCE_S - 1
    end.signals.handle(signal.SIGTERM)
    assert (end.asked, end.ended) == ([signal.SIGTERM], [])
    end.clock.now_s += 2  # it should have ended by itself
    end.signals.handle(signal.SIGTERM)
    assert end.ended == [143]


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGQUIT])
def test_a_person_who_asks_again_is_obeyed_at_once(end, second):
    end.signals.handle(signal.SIGTERM)
    end.signals.handle(second)
    assert end.ended == [128 + second]


def test_a_terminal_that_is_gone_hurries_nobody(end):
    end.signals.handle(signal.SIGHUP)
    end.clock.now_s += 2 * PATIENCE_S
    end.signals.handle(signal.SIGHUP)
    assert (end.asked, end.ended) == ([signal.SIGHUP], [])


def test_signals_of_the_users_own_are_for_the_ranks_unless_they_are_to_end_the_run(end):
    end.signals.handle(signal.SIGUSR1)
    assert (end.asked, end.forwarded) == ([], [signal.SIGUSR1])
    end.signals.handle(signal.SIGUSR2)
    end.signals.handle(signal.SIGUSR2)  # a scheduler repeats it
    assert (end.asked, end.ended, end.forwarded) == ([signal.SIGUSR2], [], [signal.SIGUSR1])


@pytest.fixture
def users():
    """The signals for users' own ends, as a process begins with them."""
    signums = (signal.SIGUSR1, signal.SIGUSR2)
    before = {each: signal.signal(each, signal.SIG_DFL) for each in signums}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


def test_a_schedulers_warning_that_comes_before_the_ranks_ends_nothing(users):
    await_ranks()
    signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR2)


def test_a_signal_that_is_to_end_the_run_does_so_before_the_ranks_too(users):
    await_ranks([signal.SIGUSR1])
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_what_ignores_a_users_signal_goes_on_doing_so(users):
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    await_ranks()
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
