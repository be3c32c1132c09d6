"""The interface of schedulers: one contract for all of them. Their configuration, and how requests count."""

import asyncio

import pytest

from pulsetrain.core.errors import PulsetrainError, Unavailable
from pulsetrain.hub.slurm_scheduler import SlurmScheduler
from pulsetrain.recovery.scheduler import (
    NodeRequest,
    NoScheduler,
    SchedulerConfig,
    SchedulerRequests,
    What,
)
from tests.hub.fake_slurm import FakeSlurm
from tests.recovery.fakes import FakeScheduler, at_once

CONFIG = SchedulerConfig(kind="slurm", template="spare.sbatch")
WORKING = {
    "none": NoScheduler,
    "fake": FakeScheduler,
    "slurm": lambda: SlurmScheduler(CONFIG, {}, FakeSlurm()),
}
REFUSING = {
    "fake": lambda: FakeScheduler(error="no"),
    "slurm": lambda: SlurmScheduler(CONFIG, {}, FakeSlurm(error="no")),
}


def each(scheduler):
    request = NodeRequest(job="j", nnodes=2, least=2, exclude=("n1",))
    return (
        lambda: scheduler.drain("n1", "fan failed", job="j"),
        lambda: scheduler.give_back("n1"),
        lambda: scheduler.replace(request),
    )


@pytest.mark.parametrize("make", WORKING.values(), ids=WORKING)
def test_every_request_is_answered_in_one_line(make):
    for call in each(make()):
        said = call()
        assert said
        assert "\n" not in said


@pytest.mark.parametrize("make", REFUSING.values(), ids=REFUSING)
def test_every_refusal_is_an_error_of_one_line(make):
    for call in each(make()):
        with pytest.raises(PulsetrainError) as refused:
            call()
        assert "\n" not in str(refused.value)


def test_requests_are_counted_by_their_result():
    async def scenario():
        requests = SchedulerRequests(FakeScheduler(), CONFIG, at_once)
        assert (await requests.ask(What.DRAIN, lambda: "done")).said == "done"

        def refuse():
            raise Unavailable("not now")

        assert (await requests.ask(What.REPLACE, refuse)).error == "not now"
        assert requests.counts == {(What.DRAIN, True): 1, (What.REPLACE, False): 1}

    asyncio.run(scenario())


def test_requests_do_not_hold_up_the_loop():
    async def scenario():
        loop, free = asyncio.get_running_loop(), asyncio.Event()
        requests = SchedulerRequests(FakeScheduler(), CONFIG)

        def wait_for_the_loop():
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(10)
            loop.call_soon_threadsafe(free.set)
            return "done"

        answer = await requests.ask(What.DRAIN, wait_for_the_loop)
        assert (answer.said, free.is_set()) == ("done", True)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"kind": "pbs"}, "kind = 'pbs': allowed none, slurm"),
        ({"standbys": -1}, "standbys = -1: allowed 0 or more"),
        ({"timeout_s": 0}, "timeout_s = 0: allowed above 0"),
        ({"scontrol": " "}, "scontrol is empty"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(wrong, said):
    with pytest.raises(ValueError, match=said):
        SchedulerConfig(**wrong)
