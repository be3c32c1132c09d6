"""Commands that wait until the hub has shown that it leads, in virtual time."""

import pytest

from pulsetrain.agent.lead_check import LeadCheck
from pulsetrain.protocol.messages import (
    UNCONFIRMED,
    Confirm,
    Confirmed,
    DumpStacks,
    Leave,
    Ping,
    ReadRas,
    Reply,
    Stop,
)
from tests.hub.fakes import Clock

STOP = Stop(id=4, reason="a rank died")
REFUSED = Reply(id=4, node="a", error=UNCONFIRMED)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def check(clock):
    check = LeadCheck(clock)
    check.node = "a"
    return check


def test_a_command_is_carried_out_once_the_hub_has_shown_that_it_leads(check, clock):
    assert check.hold(STOP) == Confirm(id=4, node="a")
    clock.now_s += 2.9
    assert check.confirmed(Confirmed(id=4, leads_s=3.0)) == STOP
    assert check.confirmed(Confirmed(id=4, leads_s=3.0)) is None
    assert check.give_up(4) is None


@pytest.mark.parametrize(("after_s", "leads_s"), [(0.0, 0.0), (3.0, 3.0), (60.0, 3.0)])
def test_a_hub_that_does_not_lead_or_answers_too_late_is_refused(check, clock, after_s, leads_s):
    check.hold(STOP)
    clock.now_s += after_s
    assert check.confirmed(Confirmed(id=4, leads_s=leads_s)) == REFUSED
    assert check.confirmed(Confirmed(id=4, leads_s=9.0)) is None


def test_a_hub_that_does_not_answer_is_refused(check):
    check.hold(STOP)
    assert check.give_up(4) == REFUSED
    assert check.confirmed(Confirmed(id=4, leads_s=3.0)) is None


def test_an_answer_is_for_one_command_alone(check):
    leave = Leave(id=5, reason="evicted")
    check.hold(STOP)
    check.hold(leave)
    assert check.confirmed(Confirmed(id=5, leads_s=3.0)) == leave
    assert check.confirmed(Confirmed(id=6, leads_s=3.0)) is None
    assert check.give_up(4) == REFUSED


@pytest.mark.parametrize("command", [Ping(id=1), DumpStacks(id=2), ReadRas(id=3)])
def test_what_changes_nothing_need_not_wait(check, command):
    assert check.hold(command) is None
