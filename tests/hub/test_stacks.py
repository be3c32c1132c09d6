"""When stacks are read, whose picture counts as evidence, and what a blind agent leads to. No processes."""

import asyncio
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive
from pulsetrain.analytics.watch import JobView
from pulsetrain.core.errors import UsageError
from pulsetrain.core.supervisor import TaskSupervisor
from pulsetrain.hub.stack_sampling import BUDGET_S, SAMPLES, StackSampler
from pulsetrain.hub.stacks import AGAIN_S, SELF_TEST_S, Stacks
from pulsetrain.protocol.messages import GroupStatus, Reply
from pulsetrain.recovery.transitions import Phase
from tests.hub.fakes import Clock
from tests.recovery.builders import S, job_snapshot, node_snapshot, status

WAIT = ["train (t.py:4)", "all_reduce (c10d.py:9)"]


class Journal:
    def __init__(self):
        self.kinds = []

    def event(self, kind, **more):
        self.kinds.append((kind, more["actor"]))


class FakeJob:
    """A job of two nodes of two ranks; rank 3 stands elsewhere."""

    def __init__(self):
        self.phase = Phase.RUNNING
        self.asked = []
        self.later = []  # replies of the samples after the first; the same again where there are none
        self.replies = [
            Reply(id=1, node="a", data=folded(WAIT, [0, 1])),
            Reply(id=2, node="b", data={"stacks": [stack(WAIT, [2]), stack(["load (d.py:1)"], [3])]}),
        ]

    def snapshot(self):
        group = GroupStatus(group="dp", members=(0, 1, 2, 3), enqueued=4, completed=3)
        nodes = (node_snapshot("a", status(0, groups=(group,))), node_snapshot("b"))
        return job_snapshot(phase=self.phase, nodes=nodes)

    async def read_stacks(self, timeout_s, *, first_only=False):
        self.asked.append("first" if first_only else "all")
        await asyncio.sleep(0)
        replies = self.replies
        if self.later:
            self.replies = self.later.pop(0)
        return replies


def stack(frames, ranks):
    return {"thread": "MainThread", "frames": frames, "ranks": ranks}


def folded(frames, ranks):
    return {"stacks": [stack(frames, ranks)], "blind": {}}


def looked(silence_s, limit_s=3.0):
    return [Healthy(analyzer="hang", numbers={"silence_ns": silence_s * S, "limit_ns": limit_s * S})]


def hung(clock):
    return Finding(
        ts_ns=clock.wall_ns(), job="j", attempt=0, kind="hang", subject_type="rank", subject="3",
        severity="critical", confidence=0.9, summary="hangs",
    )  # fmt: skip


VIEW = JobView(job="j", attempt=0, now_ns=0)


@pytest.fixture
def site():
    clock, journal, job, loops = Clock(), Journal(), FakeJob(), TaskSupervisor()
    sampler = StackSampler(clock, pause_s=0)
    stacks = Stacks({"j": job}, journal, clock, loops, stopped_s=2.0, sampler=sampler)
    return SimpleNamespace(clock=clock, journal=journal, stacks=stacks, job=job, loops=loops)


async def consider(site, verdicts, after_s=0.25):
    site.clock.now_s += after_s
    site.stacks.consider(site.job.snapshot(), VIEW, verdicts)
    while len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(0.001)


def test_reading_begins_at_half_the_silence_and_not_again_at_once(site):
    async def story():
        await consider(site, looked(1.4))
        assert site.job.asked == []
        await consider(site, looked(1.6))
        await consider(site, looked(2.0))
        assert site.job.asked == ["all"] * SAMPLES
        await consider(site, looked(2.0), after_s=AGAIN_S + 1)
        assert site.job.asked == ["all"] * 2 * SAMPLES

    asyncio.run(story())
    assert site.journal.kinds == [("stacks", "silence")] * 2


def test_a_hang_gets_the_picture_of_its_silence_and_no_older_one(site):
    async def story():
        await site.stacks.take("j", "ann")
        (plain,) = site.stacks.attach("j", 0, [hung(site.clock)])
        assert "stacks" not in plain.evidence  # it was taken while all was well
        await consider(site, looked(2.0))
        (told,) = site.stacks.attach("j", 0, [hung(site.clock)])
        assert told.evidence["stacks"]["outliers"] == "3"
        assert "stacks" not in site.stacks.attach("j", 1, [hung(site.clock)])[0].evidence
        site.clock.now_s += 600
        assert "stacks" not in site.stacks.attach("j", 0, [hung(site.clock)])[0].evidence

    asyncio.run(story())


def test_one_rank_is_tried_soon_after_the_first_step_and_blindness_is_a_state(site):
    denied = {"stacks": [], "blind": {"0": "not allowed"}}
    site.job.replies = [Reply(id=1, node="a", data=denied), Reply(id=2, node="b", error="no answer in 4 s")]

    async def story():
        await consider(site, looked(0.1))
        assert isinstance(site.stacks.detector("j"), Inconclusive)
        assert not site.stacks.detector("j").blind
        await consider(site, looked(0.1), after_s=SELF_TEST_S + 1)
        await consider(site, looked(0.1), after_s=SELF_TEST_S + 1)

    asyncio.run(story())
    assert site.job.asked == ["first"]
    seen = site.stacks.detector("j")
    assert seen.blind
    assert "not allowed" in seen.reason
    assert site.journal.kinds == []


def elsewhere(rank):
    """What the agents answer while this rank stands elsewhere."""
    usual = [stack(WAIT, [r for r in range(4) if r != rank])]
    return [
        Reply(id=1, node="a", data={"stacks": [*usual, stack(["load (d.py:1)"], [rank])]}),
        Reply(id=2, node="b", data={"stacks": []}),
    ]


def test_who_stands_elsewhere_in_one_sample_only_is_not_accused(site):
    site.job.replies, site.job.later = elsewhere(1), [elsewhere(3), elsewhere(3)]
    answer = asyncio.run(site.stacks.take("j", "ann"))
    assert (answer["state"], answer["outliers"]) == ("no_consensus", "")
    assert (answer["samples"], answer["wavering"]) == (3, "1,3")


def test_a_sample_of_ranks_that_are_being_ended_does_not_count(site):
    async def story():
        task = asyncio.create_task(site.stacks.take("j", "ann"))
        while len(site.job.asked) < SAMPLES:
            await asyncio.sleep(0)
        site.job.phase, site.job.replies = Phase.SUSPENDING, elsewhere(0)
        return await task

    answer = asyncio.run(story())
    assert (answer["outliers"], answer["samples"]) == ("3", SAMPLES - 1)


def test_two_samples_have_to_do_where_reading_takes_long(site):
    async def slow(timeout_s, *, first_only=False):
        site.job.asked.append("all")
        site.clock.now_s += BUDGET_S / 2 + 0.1
        return site.job.replies

    site.job.read_stacks = slow
    answer = asyncio.run(site.stacks.take("j", "ann"))
    assert (answer["outliers"], answer["samples"], site.job.asked) == ("3", 2, ["all"] * 2)


def test_two_who_ask_at_once_get_one_picture(site):
    async def story():
        return await asyncio.gather(site.stacks.take("j", "ann"), site.stacks.take("j", "bob"))

    one, other = asyncio.run(story())
    assert one == other
    assert site.job.asked == ["all"] * SAMPLES
    assert (one["outliers"], one["tree"][0]["ranks"]) == ("3", "0-3")
    assert isinstance(site.stacks.detector("j"), Healthy)


def test_a_node_that_does_not_answer_is_named_and_the_rest_is_shown(site):
    site.job.replies = [site.job.replies[0], Reply(id=2, node="b", error="not connected")]
    answer = asyncio.run(site.stacks.take("j", "ann"))
    assert answer["state"] == "alike"
    assert answer["blind"] == [{"reason": "b: not connected", "ranks": "2-3"}]


def test_a_reading_that_raises_is_counted_and_the_next_one_works(site):
    original = site.job.read_stacks

    async def broken(timeout_s, **more):
        raise RuntimeError("thrown by the test")

    async def story():
        site.job.read_stacks = broken
        with capture_logs():
            with pytest.raises(RuntimeError):
                await site.stacks.take("j", "ann")
            await asyncio.sleep(0)
        site.job.read_stacks = original
        return await site.stacks.take("j", "ann")

    report = asyncio.run(story())
    assert report["outliers"] == "3"
    (status,) = site.loops.statuses()
    assert (status.name, status.failures, status.failures_in_a_row) == ("stacks", 1, 0)


def test_an_unknown_job_is_one_line(site):
    with pytest.raises(UsageError, match="no job 'k' runs here; jobs here: j"):
        site.stacks.latest("k")


def test_a_later_job_of_the_same_name_is_not_shown_the_report_of_the_one_before(site):
    async def story():
        await consider(site, looked(1.6))
        assert site.stacks.latest("j")
        site.stacks.forget("j")
        assert site.stacks.latest("j") == {}

    asyncio.run(story())
