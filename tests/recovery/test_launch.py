"""Starting an attempt on the nodes of a world."""

import asyncio
from dataclasses import replace

from pulsetrain.protocol.messages import NOT_READ, Held, HostStore, Reply, Start
from pulsetrain.recovery import launch as launching
from pulsetrain.recovery.launch import launch
from pulsetrain.recovery.record import Fault
from pulsetrain.recovery.transitions import Event
from tests.recovery.builders import heartbeat
from tests.recovery.test_actions import FakeNode, crashed, job_of


class Launcher(FakeNode):
    """Starts its ranks; `store_error` and `start` say what it answers instead."""

    def __init__(self, name, *, store_error="", start=None, error=""):
        super().__init__(name)
        self.store_error, self.start, self.error = store_error, start or {}, error

    async def ask(self, command, timeout_s):
        self.commands.append(command)
        if isinstance(command, HostStore):
            return Reply(id=command.id, node=self.name, error=self.store_error, data={"port": 4242})
        return Reply(id=command.id, node=self.name, error=self.error, data=self.start)


def holds(node, *ranks, step=4):
    node.take_heartbeat(
        heartbeat(node.name, held=tuple(Held(rank=r, step=step, tier="memory") for r in ranks)), 0.0
    )


def test_every_node_starts_its_ranks_from_the_common_step():
    a, b = Launcher("a", start={"load_ns": {"0": 5, "1": 9}}), Launcher("b")
    holds(a, 0, 1)
    holds(b, 2, 3)
    job = job_of(a, b)
    crashed(job)
    assert asyncio.run(launch(job)) is Event.STARTED
    assert [type(c) for c in a.commands] == [HostStore, Start]
    start = b.commands[0]
    assert (start.attempt, start.node_rank, start.restore_step) == (1, 1, 4)
    assert (start.sources, start.store_port) == ({"2": "memory", "3": "memory"}, 4242)
    assert (job.attempt.launched, job.recovery.fetch_ns, job.recovery.resumed_step) == (True, 9, 4)


def test_an_attempt_has_a_number_of_which_storage_has_no_files():
    a, b = Launcher("a"), Launcher("b")
    b.take_heartbeat(heartbeat("b", stored_attempt=6), 0.0)
    job = job_of(a, b)
    assert asyncio.run(launch(job)) is Event.STARTED
    assert (job.attempt.number, a.commands[-1].attempt) == (7, 7)


def test_ranks_are_told_the_attempt_with_which_the_run_began():
    a, b = Launcher("a"), Launcher("b")
    job = job_of(a, b)
    job.attempt.number = 6  # of a run that is over
    for _ in range(2):
        assert asyncio.run(launch(job)) is Event.STARTED
        crashed(job)
    starts = [c for c in b.commands if isinstance(c, Start)]
    assert [(c.attempt, c.first_attempt) for c in starts] == [(7, 7), (8, 7)]
    assert job.services.memory.recall(job.name).world.first_attempt == 7


def test_a_run_has_a_name_of_its_own_that_a_new_hub_keeps():
    a, b = Launcher("a"), Launcher("b")
    for node in (a, b):
        node.hello = replace(node.hello, takes_run=True)
    job = job_of(a, b)
    for _ in range(2):
        assert asyncio.run(launch(job)) is Event.STARTED
        crashed(job)
    first, second = (c.run for c in b.commands if isinstance(c, Start))
    assert first == second == job.services.memory.recall(job.name).world.run
    assert int(first, 16) >= 0


def test_a_run_with_an_older_agent_has_no_name_and_gets_none_later():
    a, b = Launcher("a"), Launcher("b")
    job = job_of(a, b)
    for takes_run in (False, True):
        for node in (a, b):
            node.hello = replace(node.hello, takes_run=takes_run or node is a)
        assert asyncio.run(launch(job)) is Event.STARTED
        crashed(job)
    assert [c.run for c in b.commands if isinstance(c, Start)] == ["", ""]


def test_a_run_that_began_under_another_hub_goes_on_to_count_attempts():
    job = job_of(Launcher("a"), Launcher("b"))
    job.attempt.number, job.attempt.adopted = 3, True
    assert asyncio.run(launch(job)) is Event.STARTED
    assert (job.attempt.number, job.first_attempt) == (4, 0)


def test_a_launch_that_does_not_know_what_storage_holds_is_an_event():
    a, b = Launcher("a"), Launcher("b")
    b.take_heartbeat(heartbeat("b", stored_attempt=NOT_READ), 0.0)
    job = job_of(a, b)
    asyncio.run(launch(job))
    assert job.services.journal.last("storage_not_read")["detail"] == {"nodes": ["b"]}


def test_a_launch_from_what_the_script_had_abandoned_is_an_event():
    a, b = Launcher("a"), Launcher("b")
    job = job_of(a, b)
    before = [Held(rank=r, step=1000, tier="storage", attempt=0) for r in range(4)]
    since = Held(rank=0, step=1, tier="memory", attempt=0, history=1)
    a.take_heartbeat(heartbeat("a", held=(*before, since, replace(since, rank=1))), 0.0)
    asyncio.run(launch(job))
    assert b.commands[-1].restore_step == 1000
    assert job.services.journal.last("restore_abandoned")["detail"] == {"step": 1000}


def test_all_agents_of_a_job_get_the_key_by_which_they_know_each_other():
    a, b = Launcher("a"), Launcher("b")
    job = job_of(a, b)
    job.services = replace(job.services, peer_key=lambda name: f"key of {name}")
    asyncio.run(launch(job))
    assert {a.commands[-1].peer_key, b.commands[-1].peer_key} == {f"key of {job.name}"}


def test_a_node_that_cannot_start_is_a_fault_that_names_it():
    job = job_of(Launcher("a"), Launcher("b", error="no memory"))
    fault = asyncio.run(launch(job))
    assert isinstance(fault, Fault)
    assert (fault.reason, fault.node, fault.attempt) == ("launch on b: no memory", "b", 1)
    assert not job.attempt.launched


def test_without_a_store_nothing_is_started():
    b = Launcher("b")
    job = job_of(Launcher("a", store_error="port in use"), b)
    assert asyncio.run(launch(job)).reason == "launch on a: port in use"
    assert b.commands == []


def test_a_checkpoint_that_is_whole_nowhere_is_not_tried_again():
    b = Launcher("b", error="whole nowhere", start={"unrestorable": [2, 4]})
    a = Launcher("a")
    holds(a, 0, 1)
    holds(b, 2, 3)
    job = job_of(a, b)
    asyncio.run(launch(job))
    asyncio.run(launch(job))
    assert [c.restore_step for c in b.commands] == [4, -1]
    assert job.attempt.number == 2


def launched_from(job, *, failures):
    """The step of each launch after so many crashes in a row."""
    steps = []
    for _ in range(failures):
        assert asyncio.run(launch(job)) is Event.STARTED
        steps.append(job.attempt.restore_step)
        crashed(job)
    return steps


def test_a_checkpoint_from_which_attempts_fail_again_and_again_gives_way_to_an_older_one():
    a, b = Launcher("a"), Launcher("b")
    for node, ranks in ((a, (0, 1)), (b, (2, 3))):
        held = tuple(Held(rank=r, step=step, tier="memory") for r in ranks for step in (4, 8))
        node.take_heartbeat(heartbeat(node.name, held=held), 0.0)
    job = job_of(a, b)
    assert launched_from(job, failures=6) == [8, 8, 4, 4, 8, 8]


def test_where_there_is_no_older_one_it_is_loaded_all_the_same():
    a, b = Launcher("a"), Launcher("b")
    holds(a, 0, 1)
    holds(b, 2, 3)
    assert launched_from(job_of(a, b), failures=4) == [4, 4, 4, 4]


def test_a_new_checkpoint_is_not_doubted_for_what_an_older_one_did():
    a, b = Launcher("a"), Launcher("b")
    job = job_of(a, b)
    for node, ranks in ((a, (0, 1)), (b, (2, 3))):
        holds(node, *ranks)
    launched_from(job, failures=2)
    for node, ranks in ((a, (0, 1)), (b, (2, 3))):
        holds(node, *ranks, step=9)
    assert launched_from(job, failures=1) == [9]


def test_nodes_outside_the_world_are_looked_for_once_and_not_for_each_node(monkeypatch):
    looked, holders = [], launching._holders
    monkeypatch.setattr(launching, "_holders", lambda *given: looked.append(1) or holders(*given))
    job = job_of(Launcher("a"), Launcher("b"))
    assert asyncio.run(launch(job)) is Event.STARTED
    assert len(looked) == 1


class Loader(Launcher):
    """Loads for so long that it never answers."""

    async def ask(self, command, timeout_s):
        if isinstance(command, Start):
            await asyncio.Event().wait()
        return await super().ask(command, timeout_s)


def test_a_launch_does_not_wait_for_those_that_load_once_a_node_is_gone():
    job = job_of(Loader("a"), Launcher("b", error="connection closed"))
    outcome = asyncio.run(asyncio.wait_for(launch(job), 10))
    assert isinstance(outcome, Fault)
    assert (outcome.event, outcome.node) == (Event.START_FAILED, "b")


def test_a_launch_waits_for_all_where_a_node_only_says_what_it_could_not_load():
    """What others cannot load is learned with it, so that it does not take one launch each."""

    async def scenario():
        broken = Launcher("b", start={"unrestorable": [2, 4]}, error="it is whole nowhere")
        task = asyncio.create_task(launch(job_of(Loader("a"), broken)))
        await asyncio.sleep(0.6)
        waits = not task.done()
        task.cancel()
        return waits

    assert asyncio.run(scenario())


def test_a_launch_that_is_overtaken_leads_to_nothing():
    async def scenario():
        job = job_of(Loader("a"), Launcher("b"))
        task = asyncio.create_task(launch(job))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        job.attempt.overtaken.set()
        return await asyncio.wait_for(task, 10), job.attempt.launched

    assert asyncio.run(scenario()) == (None, False)
