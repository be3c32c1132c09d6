"""The hub takes its time only while somebody keeps saying that all is steady, and nobody waits."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.hub.watch_pace import (
    ANSWER_SHARE,
    LONGEST_REST_S,
    LOOKED_S,
    STEADY_S,
    WatchPace,
    calm_wait_s,
)
from tests.hub.fakes import Clock


class Site:
    def __init__(self):
        self.clock, self.spent_s = Clock(), 0.0
        self.pace = WatchPace(self.clock, lambda: self.spent_s)


@pytest.fixture
def site():
    return Site()


@given(cost_s=st.floats(0, 10), share=st.floats(0.001, 0.5))
def test_work_uses_no_more_than_its_share_unless_it_would_wait_too_long(cost_s, share):
    wait_s = calm_wait_s(cost_s, share, 1.0, 8.0)
    assert cost_s <= wait_s * share * 1.001 or wait_s == 8.0
    assert 1.0 <= wait_s <= 8.0


def test_a_hub_is_prompt_until_somebody_says_that_all_is_steady_and_soon_after(site):
    assert not site.pace.calm
    site.pace.steady()
    assert site.pace.calm
    site.clock.now_s += STEADY_S
    assert not site.pace.calm


def test_who_looks_makes_it_prompt_for_a_while_whatever_is_steady(site):
    site.pace.looked()
    site.pace.steady()
    assert not site.pace.calm
    site.clock.now_s += LOOKED_S
    site.pace.steady()
    assert site.pace.calm


@pytest.mark.parametrize(
    ("inserts_s", "rest_s"), [(0.0, 0.0), (0.02, 2.0), (0.03, 3.0), (9.0, LONGEST_REST_S)]
)
def test_answers_rest_so_long_that_inserts_use_their_share(site, inserts_s, rest_s):
    site.pace.steady()
    site.spent_s = inserts_s
    assert site.pace.rest_s() == pytest.approx(rest_s)
    assert rest_s == LONGEST_REST_S or inserts_s == pytest.approx(rest_s * ANSWER_SHARE)


def test_answers_of_all_nodes_end_together(site):
    site.pace.steady()
    site.spent_s = 0.04
    assert site.pace.rest_s() == pytest.approx(4.0)
    site.clock.now_s += 1.0
    assert site.pace.rest_s() == pytest.approx(3.0)


@pytest.mark.parametrize("end", ["looked", "message", "unsteady"])
def test_an_answer_that_rests_goes_at_once_where_somebody_is_in_a_hurry(site, end):
    async def answered():
        site.spent_s = 9.0
        site.pace.steady()
        answer = asyncio.create_task(site.pace.rest())
        await asyncio.sleep(0)
        waited = not answer.done()
        getattr(site.pace, end)()
        await asyncio.wait_for(answer, 1.0)
        return waited

    assert asyncio.run(answered())
    assert site.pace.rest_s() == 0.0
