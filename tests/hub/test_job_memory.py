"""What jobs must not forget, in the key-value store."""

import asyncio
import json
from dataclasses import asdict, replace

import pytest

from pulsetrain.core.errors import CorruptData, Unavailable
from pulsetrain.hub import job_memory
from pulsetrain.hub.job_memory import KeptMemory
from pulsetrain.kv.files import FileStore
from pulsetrain.kv.store import Compare, Of, Write
from pulsetrain.recovery.memory import (
    HangMemory,
    JobMemory,
    NodeMemory,
    Preemption,
    ReplacementMemory,
    RestartMemory,
    SizeMemory,
    StopMemory,
    TimeMemory,
    UpdateMemory,
    WorldMemory,
)

EVICTED = NodeMemory(pid=7, agent_id="x", evicted="fan failed", evicted_by="controller")
CORDONED = NodeMemory(pid=8, cordon="light check: gemm", probation_s=600.0)
RESTARTS = RestartMemory(
    used=2, idle=1, unexplained=0, by_node_ns={"a": [7]}, failed_from=[[50, 2]], unrestorable=[[1, 50]]
)
WORLD = WorldMemory(attempt=3, nodes=["a", "b"], pids=[7, 8], agent_ids=["x", ""], finished=[1])
ASKED = ReplacementMemory(pending_ns=[9], hour_ns=[5, 9], open_ns=[[1, 9]])
TIME = TimeMemory(began_ns=3, use="train", since_ns=9, old_ns={"start": 1}, stretches=[["train", 4, 9]])
PROGRAM = {"number": 3, "argv": ["train.py", "--name", "träin"], "environment": {"K": "1"}}
UPDATE = UpdateMemory(number=3, in_force=PROGRAM)
STOPPED = StopMemory(path="/träin.pt", step=9, attempt=0, gap=5, pids=[7], agent_ids=["x"])
HELD = HangMemory(
    hold_until_ns=9,
    actor="ann",
    restarts={"evaluate (träin.py:8)": 2},
    restarted_at={"evaluate (träin.py:8)": [7, 8]},
)
NOTHING = JobMemory(evictions_ns=(), nodes={})


@pytest.fixture
def store(tmp_path):
    store = FileStore(tmp_path)
    yield store
    store.close()


def loaded(store):
    memory = KeptMemory(store, patience_s=0.01)
    memory.load()
    return memory


def run(scenario):
    return asyncio.run(asyncio.wait_for(scenario(), 20))


def test_a_new_hub_recalls_what_was_noted_of_each_job(store):
    async def scenario():
        memory = loaded(store)
        memory.evictions("team/j", [5, 9])
        memory.node("team/j", "rack 1/a", EVICTED)
        memory.node("team/j", "b", CORDONED)
        memory.node("team/j", "c", CORDONED)
        memory.node("team", "d", CORDONED)
        memory.pauses("team/j", {"evaluate (träin.py:8)": 90})
        memory.restarts("team/j", RESTARTS)
        memory.world("team/j", WORLD)
        memory.replacements("team/j", ASKED)
        memory.size("team/j", SizeMemory(cap=2, devices=3))
        memory.time("team/j", TIME)
        memory.update("team/j", UPDATE)
        memory.hangs("team/j", HELD)
        memory.stop("team/j", STOPPED)
        await memory.turn()
        memory.node("team/j", "c", None)
        memory.node("team/j", "e", None)
        await memory.turn()

    run(scenario)
    again = loaded(store)
    assert again.recall("team/j") == JobMemory(
        evictions_ns=(5, 9),
        nodes={"rack 1/a": EVICTED, "b": CORDONED},
        pauses_ns={"evaluate (träin.py:8)": 90},
        restarts=RESTARTS,
        world=WORLD,
        replacements=ASKED,
        size=SizeMemory(cap=2, devices=3),
        time=TIME,
        update=UPDATE,
        hangs=HELD,
        stop=STOPPED,
    )
    assert again.recall("team").nodes == {"d": CORDONED}
    assert again.recall("other") == NOTHING


def test_a_hub_reads_what_a_newer_one_has_kept(store):
    """Hubs are upgraded one after the other, and the older one may lead again."""
    for key, value in (("nodes/a", asdict(EVICTED)), ("world", asdict(WORLD))):
        text = json.dumps({**value, "not_known_yet": 1})
        store.commit([], [Write(key=f"jobs/j/{key}", value=text)])
    known = loaded(store).recall("j")
    assert (known.nodes["a"], known.world) == (EVICTED, WORLD)


def test_a_new_hub_recalls_that_a_job_is_pre_empted_until_it_was_resumed(store):
    kept = Preemption(reason="noon", actor="ann", step=9, stopped_ns=5)

    async def note(memory, preemption):
        memory.preemption("j", preemption)
        await memory.turn()

    run(lambda: note(loaded(store), kept))
    assert loaded(store).recall("j").preemption == kept
    run(lambda: note(loaded(store), None))
    assert loaded(store).recall("j") == NOTHING


def test_a_program_that_is_no_more_updated_leaves_nothing(store):
    async def scenario():
        memory = loaded(store)
        memory.update("j", UPDATE)
        await memory.turn()
        memory.update("j", None)
        await memory.turn()

    run(scenario)
    assert loaded(store).recall("j") == NOTHING


def test_a_job_that_is_over_leaves_nothing(store):
    async def scenario():
        memory = loaded(store)
        for number in range(250):
            memory.node("j", f"n{number}", CORDONED)
        memory.evictions("j", [1])
        await memory.turn()
        assert len(store.entries("jobs/").entries) == 251
        memory.forget("j", 0)
        assert memory.recall("j") == NOTHING
        await memory.turn()

    run(scenario)
    assert store.entries("jobs/").entries == ()


def test_it_knows_which_jobs_are_not_over(store):
    memory = loaded(store)
    memory.world("a b/c", WORLD)
    memory.evictions("over", [5])
    memory.world("over", WORLD)
    memory.forget("over", 0)
    assert memory.jobs() == {"a b/c"}


def test_the_newest_attempts_and_exit_codes_of_the_last_few_jobs_that_are_over_are_known(store, monkeypatch):
    monkeypatch.setattr(job_memory, "ENDED_JOBS", 2)

    async def scenario():
        memory = loaded(store)
        for number, job in enumerate("abca"):
            memory.world(job, replace(WORLD, attempt=number))
            memory.forget(job, number)
        await memory.turn()

    run(scenario)
    again = loaded(store)
    assert [again.ended(job).attempt for job in "abc"] == [3, -1, 2]
    assert [again.ended(job).exit_code for job in "abc"] == [3, 1, 2]
    assert again.recall("a").world is None


def test_a_write_that_fails_is_tried_again_and_nobody_waits_for_ever(store, monkeypatch):
    async def scenario():
        memory = loaded(store)
        memory.node("j", "a", CORDONED)
        with monkeypatch.context() as patch:
            patch.setattr(store, "commit", away)
            with pytest.raises(Unavailable):
                await memory.turn()
            await memory.stored()
        memory.node("j", "a", EVICTED)
        await memory.turn()
        await memory.stored()

    def away(compares, writes):
        raise Unavailable("disk full")

    run(scenario)
    assert loaded(store).recall("j").nodes == {"a": EVICTED}


def test_what_it_has_not_written_is_named(store):
    store.commit((), [Write(key="jobs/j/nodes/a", value='{"what": 1}')])
    with pytest.raises(CorruptData, match="job 'j'"):
        loaded(store)


def test_a_stale_leader_writes_nothing_and_is_told(store):
    async def scenario():
        told = []
        other = [Compare(key="leader", of=Of.CREATED, revision=4)]
        memory = KeptMemory(store, fence=lambda: other, refused=lambda: told.append(1), patience_s=0.01)
        memory.node("j", "a", CORDONED)
        with pytest.raises(Unavailable, match="another hub leads"):
            await memory.turn()
        assert (told, store.entries("").entries) == ([1], ())

    run(scenario)
