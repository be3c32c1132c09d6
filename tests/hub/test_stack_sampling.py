"""What several samples of stacks say together."""

import asyncio

from pulsetrain.hub.stack_sampling import BUDGET_S, SAMPLES, StackSampler
from pulsetrain.protocol.messages import Reply
from tests.hub.fakes import Clock
from tests.hub.test_stacks import WAIT, FakeJob, folded


def take(job, clock=None):
    kept = []
    report = asyncio.run(StackSampler(clock or Clock(), pause_s=0).take(job, "ann", kept.append))
    return report, kept


def test_every_sample_so_far_is_kept_and_the_last_report_is_the_answer():
    report, kept = take(FakeJob())
    assert [r["samples"] for r in kept] == list(range(1, SAMPLES + 1))
    assert report == kept[-1]
    assert (report["outliers"], report["why"], report["attempt"]) == ("3", "ann", 0)
    assert report["tree"][0]["ranks"] == "0-3"


def test_one_sample_is_enough_where_nothing_can_be_read():
    job = FakeJob()
    job.replies = [Reply(id=1, node="a", error="no answer in 4 s")]
    report, kept = take(job)
    assert (report["state"], len(kept)) == ("blind", 1)
    assert {b["reason"] for b in report["blind"]} == {"a: no answer in 4 s", "b: its agent is away"}


def test_a_slow_agent_gets_fewer_samples():
    job, clock = FakeJob(), Clock()
    original = job.read_stacks

    async def slow(timeout_s, **more):
        clock.now_s += BUDGET_S
        return await original(timeout_s, **more)

    job.read_stacks = slow
    report, _ = take(job, clock)
    assert report["samples"] == 2


def self_test(*replies):
    job = FakeJob()
    job.replies = list(replies)
    return asyncio.run(StackSampler(Clock()).self_test(job)), job.asked


def test_the_self_test_reads_one_rank_a_node_and_says_why_it_cannot():
    denied = Reply(id=1, node="a", data={"stacks": [], "blind": {"0": "not allowed"}})
    why, asked = self_test(denied, Reply(id=2, node="b", data={}))
    assert (why, asked) == ("No stack can be read: not allowed.", ["first"])
    readable = Reply(id=2, node="b", data=folded(WAIT, [2]))
    assert self_test(denied, readable)[0] == ""
