"""A person has standbys checked. Against fake agents."""

import asyncio

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.protocol.messages import SelfCheck, Start
from pulsetrain.recovery.move_request import MoveRequest
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.transitions import Phase
from tests.recovery.fakes import Fleet, run


def events(fleet, kind):
    return [event for event in fleet.journal.events if event["kind"] == kind]


def test_a_standby_that_fails_is_cordoned_in_the_persons_name_and_one_that_passes_is_not():
    async def scenario():
        fleet = Fleet("abxyz")
        await fleet.form()
        fleet.agents["z"].sick = True
        answer = await fleet.controller.check_nodes(["x", "y", "z"], "light", "ann")
        assert [(row["node"], row["result"]) for row in answer["nodes"]] == [
            ("x", "passed"),
            ("y", "passed"),
            ("z", "failed"),
        ]
        assert (answer["job"], answer["level"]) == ("j", "light")
        assert fleet.node("z").cordon == "light check: self-check failed: gemm"
        assert (fleet.node("x").cordon, fleet.of("a", SelfCheck)) == ("", [])
        assert [event["actor"] for event in events(fleet, "standby_check")] == ["ann"]

    run(scenario)


def test_a_hub_that_only_observes_says_what_failed_and_cordons_nobody():
    async def scenario():
        fleet = Fleet("abz", policy=Policy(observe_only=True))
        await fleet.form()
        fleet.agents["z"].sick = True
        answer = await fleet.controller.check_nodes(["z"], "light", "ann")
        assert answer["nodes"][0]["result"] == "failed"
        assert fleet.node("z").cordon == ""

    run(scenario)


@pytest.mark.parametrize(
    ("names", "level", "words"),
    [
        (["a"], "light", "node 'a' is active: only standbys are checked; standbys of 'j': z"),
        (["q"], "light", "no node 'q'"),
        (["z"], "heavy", "level = 'heavy': allowed: light, full"),
        ([], "light", "name at least one"),
    ],
)
def test_what_would_disturb_a_job_or_means_nothing_is_refused(names, level, words):
    async def scenario():
        fleet = Fleet("abz")
        await fleet.form()
        with pytest.raises(UsageError, match=words):
            await fleet.controller.check_nodes(names, level, "ann")
        assert not fleet.of("a", SelfCheck)

    run(scenario)


def test_a_standby_is_not_promoted_and_not_checked_twice_while_a_person_has_it_checked():
    async def scenario():
        fleet = Fleet("abz")
        await fleet.form()
        fleet.agents["z"].mute = (SelfCheck,)
        asked = asyncio.ensure_future(fleet.controller.check_nodes(["z"], "light", "ann"))
        await asyncio.sleep(0)
        with pytest.raises(UsageError, match="being checked already"):
            await fleet.controller.check_nodes(["z"], "light", "bob")
        await fleet.controller.evict("b", "fan", "ann")
        await fleet.settle()
        assert not fleet.of("z", Start)
        fleet.agents["z"].mute = ()
        fleet.agents["z"].handle(fleet.of("z", SelfCheck)[0])
        await asked
        await fleet.settle(0.6)
        await fleet.wait_for_launch()
        assert (fleet.job.phase, len(fleet.of("z", Start))) == (Phase.RUNNING, 1)

    run(scenario)


def test_a_job_that_waits_for_a_node_has_standbys_checked_lightly_only():
    async def scenario():
        fleet = Fleet("abz")
        await fleet.form()
        fleet.agents["z"].node.cordon = "light check: it was late"
        await fleet.controller.evict("b", "fan", "ann")
        await fleet.settle()
        assert fleet.job.phase is Phase.WAITING
        with pytest.raises(UsageError, match="waits for a node; allowed now: light"):
            await fleet.controller.check_nodes(["z"], "full", "ann")

    run(scenario)


def test_a_migration_waits_for_the_standby_that_is_being_checked():
    async def scenario():
        fleet = Fleet("abz")
        await fleet.form()
        job = fleet.controller.jobs["j"]
        job.move(MoveRequest(what="migrate", reason="r", actor="ann", node="b", wait_s=60.0))
        fleet.agents["z"].mute = (SelfCheck,)
        asked = asyncio.ensure_future(fleet.controller.check_nodes(["z"], "light", "ann"))
        await asyncio.sleep(0)
        assert [n.name for n in fleet.job.standbys()] == []
        await fleet.settle(1.0)
        assert "migrate_dropped" not in fleet.journal.kinds()
        assert fleet.job.move is not None
        fleet.agents["z"].mute = ()
        fleet.agents["z"].handle(fleet.of("z", SelfCheck)[0])
        await asked
        assert [n.name for n in fleet.job.standbys()] == ["z"]

    run(scenario)


def test_an_elastic_job_waits_for_its_only_standby_that_a_person_has_checked_before_it_shrinks():
    async def scenario():
        fleet = Fleet("abz", sizes=(1, 1))
        await fleet.form()
        fleet.agents["z"].mute = (SelfCheck,)
        asked = asyncio.ensure_future(fleet.controller.check_nodes(["z"], "light", "ann"))
        await asyncio.sleep(0)
        await fleet.controller.evict("b", "fan", "ann")
        await fleet.settle()
        assert fleet.job.phase is Phase.WAITING
        await fleet.settle(4.0)
        assert fleet.job.phase is Phase.WAITING
        z = fleet.agents["z"]
        z.mute = ()
        z.handle(next(c for c in z.commands if isinstance(c, SelfCheck)))
        await asked
        await fleet.settle(1.0)
        assert (fleet.job.phase, len(fleet.job.world)) == (Phase.RUNNING, 2)

    run(scenario)
