"""The cache between pages and hub: what is asked, kept, retried and admitted."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pulsetrain.core.errors import Unavailable
from pulsetrain.dashboard.source import Cache, begin


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Hub:
    """Answers with a number; takes `cost_s`; can be away."""

    def __init__(self, clock, cost_s=0.0):
        self.clock, self.cost_s, self.asked, self.away = clock, cost_s, 0, False

    def __call__(self):
        self.asked += 1
        self.clock.now += self.cost_s
        if self.away:
            raise Unavailable("hub does not answer")
        return self.asked


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def cache(clock):
    return Cache(clock, start=lambda run: run())


def test_tabs_share_an_answer_for_a_second(cache, clock):
    hub = Hub(clock)
    assert [cache.ask("status", hub) for _ in range(5)] == [1] * 5
    clock.now += 1.0
    assert cache.ask("status", hub) == 2


def test_an_expensive_answer_is_kept_five_times_its_cost(cache, clock):
    hub = Hub(clock, cost_s=2.0)
    cache.ask("heat", hub)
    clock.now += 9.9
    assert (cache.ask("heat", hub), hub.asked) == (1, 1)


def test_an_expensive_answer_is_given_out_for_five_seconds_more_while_a_new_one_is_asked_for(cache, clock):
    hub = Hub(clock, cost_s=2.0)
    cache.ask("heat", hub)
    clock.now += 14.9
    assert (cache.ask("heat", hub), hub.asked) == (1, 2)
    assert cache.ask("heat", hub) == 2
    clock.now += 15.1
    assert cache.ask("heat", hub) == 3


def test_an_answer_that_comes_quickly_is_never_older_than_a_second(cache, clock):
    hub = Hub(clock, cost_s=0.1)
    cache.ask("alerts", hub)
    clock.now += 1.0
    assert cache.ask("alerts", hub) == 2


def test_nobody_waits_for_an_answer_while_an_older_one_is_spare(clock):
    runs = []
    cache, hub = Cache(clock, start=lambda run: runs.append(run) if runs else run()), Hub(clock, cost_s=2.0)
    cache.ask("heat", hub)
    runs.append(None)
    clock.now += 11.0
    assert [cache.ask("heat", hub) for _ in range(3)] == [1, 1, 1]
    assert len(runs) == 2
    runs[1]()
    assert cache.ask("heat", hub) == 2


def test_a_new_answer_that_fails_is_a_problem_and_the_spare_one_stands_in(cache, clock):
    hub = Hub(clock, cost_s=2.0)
    cache.ask("heat", hub)
    hub.away = True
    clock.now += 11.0
    assert cache.ask("heat", hub) == 1
    assert cache.problem == "hub does not answer"
    assert (cache.ask("heat", hub), hub.asked) == (1, 2)


def test_the_last_answer_stands_in_while_the_hub_is_away_and_it_is_said(cache, clock):
    hub = Hub(clock)
    cache.ask("status", hub)
    clock.now += 2.0
    hub.away = True
    assert cache.ask("status", hub) == 1
    assert cache.problem == "hub does not answer"
    assert cache.age_s("status") == pytest.approx(2.0)


def test_a_hub_that_is_away_is_not_asked_by_every_part_of_a_page(cache, clock):
    hub = Hub(clock)
    hub.away = True
    for _ in range(5):
        with pytest.raises(Unavailable):
            cache.ask("status", hub)
    assert hub.asked == 1
    clock.now += 1.6
    hub.away = False
    assert cache.ask("status", hub) == 2
    assert cache.problem == ""


def test_a_question_that_takes_too_long_is_not_asked_again_at_once(cache, clock):
    hub = Hub(clock, cost_s=25.0)
    hub.away = True
    with pytest.raises(Unavailable):
        cache.ask("logs", hub)
    clock.now += 100
    with pytest.raises(Unavailable):
        cache.ask("logs", hub)
    assert hub.asked == 1
    clock.now += 26
    hub.away = False
    assert cache.ask("logs", hub) == 2


def test_a_problem_with_one_answer_is_not_hidden_by_another(cache, clock):
    away, fine = Hub(clock), Hub(clock)
    away.away = True
    with pytest.raises(Unavailable):
        cache.ask("spans", away)
    cache.ask("status", fine)
    assert cache.problem


def test_an_action_makes_its_answers_stale(cache, clock):
    hub = Hub(clock)
    cache.ask("nodes", hub)
    cache.forget("nodes", "never asked")
    assert cache.ask("nodes", hub) == 2


def test_an_answer_that_was_asked_for_before_an_action_is_not_kept_after_it(clock):
    cache = Cache(clock, start=lambda run: run())

    def question():
        if not acted:
            acted.append(1)
            cache.forget("nodes")
            return "before"
        return "after"

    acted = []
    assert cache.ask("nodes", question) == "before"
    assert cache.ask("nodes", question) == "after"


def test_answers_are_bounded(cache, clock):
    for key in range(500):
        cache.ask(key, Hub(clock))
    assert cache.age_s(0) is None
    assert cache.age_s(499) is not None


def test_a_page_does_not_wait_for_a_hub_that_is_frozen():
    frozen = Cache(away=lambda: "The hub does not answer", start=lambda run: None)
    with pytest.raises(Unavailable, match="does not answer"):
        frozen.ask("spans", lambda: 1)


def test_a_kept_answer_is_shown_while_the_hub_is_frozen():
    runs = []
    away = ""
    cache = Cache(away=lambda: away, start=lambda run: runs.append(run) if away else run())
    assert cache.ask("spans", lambda: 1) == 1
    cache._answers["spans"].until_s = cache._answers["spans"].spare_until_s = 0.0
    away = "The hub does not answer"
    assert cache.ask("spans", lambda: 2) == 1
    assert cache.problem == away


def test_those_who_ask_at_the_same_time_share_one_question(clock):
    cache, asked = Cache(clock), []

    def question():
        asked.append(1)
        gate.wait(10)
        return 7

    gate = threading.Event()
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(cache.ask, "heat", question) for _ in range(3)]
        while not asked:
            pass
        gate.set()
        assert {answer.result(10) for answer in answers} == {7}


def test_what_a_page_needs_is_asked_at_the_same_time_and_a_failure_is_left_to_whoever_needs_it():
    gate, met = threading.Barrier(3), threading.Semaphore(0)

    def away():
        gate.wait(10)
        met.release()
        raise Unavailable("hub does not answer")

    def here():
        gate.wait(10)
        met.release()

    begin([away, here])
    gate.wait(10)
    assert all(met.acquire(timeout=10) for _ in range(2))
