"""The stacks of the ranks that would be at fault, read again and again."""

from __future__ import annotations

import asyncio

from pulsetrain.core.supervisor import TaskSupervisor
from pulsetrain.hub.suspects import MOST_RANKS, Suspects, samples
from pulsetrain.protocol.messages import Reply
from tests.hub.fakes import Clock


def reply(*ranks, frames=("main (a.py:1)",), **details):
    stacks = [
        {"thread": "MainThread", "frames": list(frames), "ranks": list(ranks)},
        {"thread": "reader", "frames": ["read (b.py:2)"], "ranks": list(ranks)},
    ]
    return Reply(
        id=1, node="a", data={"stacks": stacks, "blind": {}, "details": {str(r): details for r in ranks}}
    )


class Job:
    """Answers with one node's stacks, and keeps whose were asked for."""

    def __init__(self):
        self.asked = []

    async def read_stacks(self, timeout_s, *, ranks=()):
        self.asked.append(tuple(ranks))
        return [reply(*ranks, gil="reader", place="main (a.py:1)")]


class Site:
    def __init__(self):
        self.job, self.clock = Job(), Clock()
        self.suspects = Suspects({"j": self.job}, self.clock, TaskSupervisor())

    def run(self, seconds, suspects=(3,), attempt=0, period_s=0.25):
        """Consider the suspects as often as the live watch does."""

        async def turns():
            for _ in range(round(seconds / period_s)):
                self.suspects.consider("j", attempt, suspects)
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                self.clock.now_s += period_s

        asyncio.run(turns())


def test_a_suspect_is_read_each_second_at_first_and_seldom_later():
    site = Site()
    site.run(6)
    assert len(site.job.asked) == 6
    site.run(54)
    assert len(site.job.asked) == 6 + 27
    site.run(100)
    assert len(site.job.asked) == 6 + 27 + 10
    assert site.suspects.postures("j", 0)[3].samples == 43


def test_what_was_read_is_forgotten_once_the_job_moves():
    site = Site()
    site.run(3)
    site.run(1, suspects=())
    assert site.suspects.postures("j", 0) == {}


def test_another_attempt_begins_anew():
    site = Site()
    site.run(3)
    assert site.suspects.postures("j", 1) == {}
    site.run(1, attempt=1)
    assert site.suspects.postures("j", 1)[3].samples == 1
    assert site.suspects.postures("j", 0) == {}


def test_time_in_which_nobody_looked_is_not_counted():
    site = Site()
    site.run(4)
    before = site.suspects.postures("j", 0)[3]
    site.clock.now_s += 3600  # the hub was stopped, or its machine
    site.run(2)
    after = site.suspects.postures("j", 0)[3]
    assert after.samples == before.samples + 2
    assert before.same_ns < after.same_ns <= before.same_ns + 2 * 10**9


def test_a_clock_that_is_set_changes_nothing():
    site = Site()
    site.run(2)
    site.clock.wall_ns = lambda: 9 * 10**18
    site.run(2)
    assert site.suspects.postures("j", 0)[3].same_ns <= 4 * 10**9


def test_of_many_suspects_some_are_read():
    site = Site()
    site.run(1, suspects=range(1000))
    assert site.job.asked[0] == tuple(range(MOST_RANKS))


def test_a_sample_has_the_main_thread_and_the_holder_of_the_gil():
    (sample,) = samples([reply(7, gil="reader", place="main (a.py:1)")], 5)
    assert (sample.rank, sample.at_ns, sample.frames) == (7, 5, ("main (a.py:1)",))
    assert (sample.gil, sample.gil_frames, sample.place) == ("reader", ("read (b.py:2)",), "main (a.py:1)")


def test_an_answer_without_stacks_or_details_gives_what_it_has():
    refused = Reply(id=1, node="a", error="no answer")
    old = Reply(id=1, node="b", data={"stacks": [{"thread": "MainThread", "frames": ["f"], "ranks": [1]}]})
    other = Reply(id=1, node="c", data={"stacks": [{"thread": "x", "frames": ["f"], "ranks": [2]}]})
    (sample,) = samples([refused, old, other], 5)
    assert (sample.rank, sample.gil, sample.place) == (1, "", "")
