"""What a person is told of a hub that is not reached."""

import pytest

from pulsetrain.agent.hub_notice import HubNotice
from tests.recovery.fakes import FakeClock


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def said():
    return []


@pytest.fixture
def notice(said, clock):
    return HubNotice(said.append, clock)


def test_a_hub_that_is_not_there_is_named_after_some_seconds_and_then_rarely(notice, said, clock):
    for _ in range(1000):
        notice.failed("hub http://a:1 cannot be reached: refused")
        clock.now_s += 1.0
    assert said == [
        f"hub http://a:1 cannot be reached: refused. Still trying after {s} s." for s in (5, 20, 80, 320)
    ]


def test_after_a_day_there_is_still_a_line_now_and_then(notice, said, clock):
    for _ in range(24 * 60):
        notice.failed("away")
        clock.now_s += 60.0
    assert 20 < len(said) < 32


def test_a_hub_that_comes_back_is_told_once_and_only_after_a_complaint(notice, said, clock):
    notice.failed("away")
    clock.now_s += 1.0
    notice.reached("http://a:1")
    assert said == []
    for _ in range(2):
        notice.failed("away")
        clock.now_s += 6.0
    notice.reached("http://a:1")
    notice.reached("http://a:1")
    assert said == ["away. Still trying after 6 s.", "hub http://a:1 is reached"]
