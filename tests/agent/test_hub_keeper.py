"""The hub of a run that ends is started again, unless that was tried in vain."""

from pulsetrain.agent.hub_keeper import LAST_WAIT_S, SETTLED_S, STARTS, HubKeeper
from tests.recovery.fakes import FakeClock


class Process:
    """A process as `subprocess` shows it."""

    pid = 7

    def __init__(self, code=None):
        self.code = code

    def poll(self):
        return self.code


class Hubs:
    """Starts hubs, of which each has ended with `code` at once. None: it runs."""

    def __init__(self, code=None):
        self.code, self.clock, self.started = code, FakeClock(), []
        self.keeper = HubKeeper(Process(), self.start, self.clock.monotonic_s)

    def start(self):
        self.started.append(Process(self.code))
        return self.started[-1]

    def keep(self, seconds):
        self.clock.now_s += seconds
        return self.keeper.keep()


def test_a_hub_that_was_killed_is_started_again():
    hubs = Hubs()
    assert hubs.keep(1)
    assert hubs.started == []
    hubs.keeper.process.code = -9
    assert [hubs.keep(1) for _ in range(5)] == [True] * 5
    assert hubs.started == [hubs.keeper.process]


def test_a_hub_that_never_starts_is_given_up():
    hubs = Hubs(code=1)
    hubs.keeper.process.code = -9
    assert [hubs.keep(LAST_WAIT_S) for _ in range(2 * STARTS)] == [True] * 2 * STARTS
    assert not hubs.keep(LAST_WAIT_S)
    assert len(hubs.started) == STARTS


def test_a_hub_that_dies_now_and_then_is_never_given_up():
    hubs = Hubs()
    for _ in range(3 * STARTS):
        hubs.keeper.process.code = -9
        hubs.keep(SETTLED_S + 1)
        assert hubs.keep(LAST_WAIT_S)
    assert len(hubs.started) == 3 * STARTS


def test_a_start_that_the_machine_refuses_is_tried_again():
    hubs, refusals = Hubs(), [OSError(11, "no process can be made")]

    def start():
        if refusals:
            raise refusals.pop()
        return hubs.start()

    hubs.keeper = HubKeeper(Process(-9), start, hubs.clock.monotonic_s)
    for _ in range(4):
        assert hubs.keep(LAST_WAIT_S)
    assert hubs.keeper.process.poll() is None
