"""Which steps are profiled, who is asked, and what the answer holds."""

import asyncio

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.hub.profiles import Profiles
from pulsetrain.protocol.messages import Reply
from pulsetrain.recovery.transitions import Phase
from tests.recovery.builders import job_snapshot, node_snapshot, status
from tests.recovery.fakes import KeptJournal


class Job:
    """A job of four ranks after step 5."""

    def __init__(self, *replies, **changes):
        self.replies, self.changes, self.asked = list(replies), changes, []

    def snapshot(self):
        return job_snapshot(**self.changes)

    async def profile(self, **asked):
        self.asked.append(asked)
        return self.replies


class Times:
    def __init__(self, seconds):
        self.seconds = seconds

    def median_step_ns(self, job):
        return int(self.seconds * 1e9)


def take(job, *, ranks=(0,), steps=3, step_s=0.5, name="j"):
    journal = KeptJournal()
    profiles = Profiles({"j": job}, Times(step_s), journal)
    answer = asyncio.run(profiles.take(name, ranks=list(ranks), steps=steps, actor="ann"))
    return answer, journal


def reply(node="a", error="", **data):
    return Reply(id=1, node=node, error=error, data=data)


@pytest.mark.parametrize(("step_s", "first"), [(0.5, 12), (10.0, 7), (0.0, 12), (0.01, 306)])
def test_the_first_step_is_one_that_no_rank_has_reached_when_it_is_asked(step_s, first):
    job = Job(reply(profiles={"0": "x"}))
    answer, _ = take(job, step_s=step_s)
    [asked] = job.asked
    assert (asked["first_step"], answer["first_step"]) == (first, first)
    assert asked["timeout_s"] <= 600


def test_the_nodes_answers_are_one_and_who_did_not_answer_is_named():
    job = Job(reply("a", profiles={"0": "x"}, failed={"1": "it has ended"}), reply("b", error="away"))
    answer, journal = take(job, ranks=(0, 1, 2))
    assert answer["profiles"] == {"0": "x"}
    assert answer["failed"] == {"1": "it has ended", "2": "b: away"}
    event = journal.last("profile")
    assert (event["actor"], event["detail"]["ranks"]) == ("ann", [0, 1, 2])


@pytest.mark.parametrize(
    ("arguments", "changes", "words"),
    [
        ({"steps": 0}, {}, "1 to 100"),
        ({"ranks": ()}, {}, "1 to 64"),
        ({"ranks": range(65)}, {}, "1 to 64"),
        ({"ranks": (4,)}, {}, "ranks 0 to 3"),
        ({}, {"phase": Phase.CHECKING}, "only a running job"),
        ({}, {"nodes": (node_snapshot("a", status(0, last_step=-1)),)}, "completed no step"),
        ({"name": "other"}, {}, "jobs here: j"),
        ({"steps": 100, "step_s": 30.0}, {}, "steps = 100: a step takes 30 s, .* allowed: 1 to 17"),
        ({"steps": 1, "step_s": 600.0}, {}, "a step takes 600 s, .* cannot be profiled"),
    ],
)
def test_what_cannot_be_profiled_is_refused_in_one_line(arguments, changes, words):
    with pytest.raises(UsageError, match=words):
        take(Job(**changes), **arguments)


def test_a_job_is_profiled_once_at_a_time():
    async def scenario():
        profiles = Profiles({"j": Slow()}, Times(0.5), KeptJournal())
        first = asyncio.create_task(profiles.take("j", ranks=[0], steps=1, actor="ann"))
        await asyncio.sleep(0)
        with pytest.raises(UsageError, match="is being profiled"):
            await profiles.take("j", ranks=[0], steps=1, actor="bob")
        await first
        await profiles.take("j", ranks=[0], steps=1, actor="bob")

    class Slow(Job):
        async def profile(self, **asked):
            await asyncio.sleep(0)
            return []

    asyncio.run(scenario())
