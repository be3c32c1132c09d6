"""From where a sharded state is put together, and when it cannot be."""

from pulsetrain.protocol.messages import Heartbeat, Held, Hello
from pulsetrain.recovery import world
from pulsetrain.recovery.shard_plan import KnownShards, plan_shards

PARTS = {0: 11, 1: 12, 2: 11, 3: 12}  # tensor-parallel ranks, twice


def shard(rank, step, *, tier="memory", attempt=0, saved_by=4):
    return Held(
        rank=rank, step=step, tier=tier, world=saved_by, attempt=attempt, shard=PARTS[rank] if rank < 4 else 0
    )


def known(parts=PARTS):
    return {(0, 4): parts}


def test_a_replica_that_is_left_is_enough():
    held = {"a": [shard(0, 9), shard(1, 9)]}
    plan = plan_shards(held, known())
    assert (plan.step, plan.attempt, plan.world) == (9, 0, 4)
    assert plan.sources == {0: "peer:a", 1: "peer:a"}
    assert plan.copies == {0: 11, 1: 12}


def test_a_part_that_is_nowhere_refuses_the_step():
    held = {"a": [shard(0, 9), shard(0, 8)], "b": [shard(1, 8)]}
    assert plan_shards(held, known()).step == 8
    assert plan_shards({"a": [shard(0, 9)]}, known()).step == -1


def test_a_rank_whose_part_is_not_known_may_have_had_what_nobody_else_has():
    held = {"a": [shard(0, 9), shard(1, 9)]}
    assert plan_shards(held, known({0: 11, 1: 12, 2: 11})).step == -1
    assert plan_shards(held, {}).step == -1


def test_steps_of_different_attempts_are_not_mixed():
    held = {"a": [shard(0, 9), shard(1, 9, attempt=1)]}
    assert plan_shards(held, {(0, 4): PARTS, (1, 4): PARTS}).step == -1


def test_memory_is_taken_before_a_replica_and_storage_last():
    stored = [shard(r, 9, tier="storage") for r in range(4)]
    held = {"a": [shard(0, 9), *stored], "b": [shard(0, 9, tier="peer")]}
    plan = plan_shards(held, {})
    assert plan.sources == {0: "peer:a", 1: "storage"}


def test_copies_are_named_so_that_they_can_be_compared():
    held = {"a": [shard(0, 9), shard(1, 9)], "b": [shard(2, 9), shard(3, 9)]}
    assert set(plan_shards(held, {}).sources) == {0, 1, 2, 3}


def test_what_is_whole_nowhere_does_not_count():
    held = {"a": [shard(0, 9), shard(1, 9), shard(0, 8), shard(1, 8)]}
    assert plan_shards(held, known(), {(1, 9)}).step == 8


def test_parts_of_lost_nodes_are_remembered():
    shards = KnownShards()
    held = (shard(0, 3), shard(1, 3), shard(2, 3, tier="peer"))
    shards.note(Heartbeat(node="a", seq=1, ts_ns=1, job="j", attempt=0, held=held))
    shards.note(Heartbeat(node="a", seq=2, ts_ns=2, job="j", attempt=1, held=()))
    assert shards.by_world == {(0, 4): {0: 11, 1: 12}}
    for attempt in range(1, 20):
        held = (shard(0, attempt, attempt=attempt),)
        shards.note(Heartbeat(node="a", seq=3, ts_ns=3, job="j", attempt=attempt, held=held))
    assert (0, 4) not in shards.by_world
    assert (19, 4) in shards.by_world


def members(*names):
    hellos = [
        Hello(node=n, address="h", job="j", pid=1, nproc_per_node=2, nnodes=2, max_restarts=3, peer_port=1)
        for n in names
    ]
    return world.form_world(hellos, len(names))


def test_a_smaller_world_puts_its_state_together():
    held = {"a": [shard(0, 9), shard(1, 9)]}
    plan = world.plan_restore(members("a"), held, (), known())
    assert (plan.step, plan.sources, plan.saved_attempt) == (9, {0: "shards", 1: "shards"}, 0)


def test_a_world_of_the_same_size_takes_its_own_copies_where_it_can():
    stored = [shard(r, 5, tier="storage") for r in range(4)]
    held = {"a": [shard(0, 9), shard(1, 9), *stored]}
    plan = world.plan_restore(members("a", "b"), held, (), known())
    assert (plan.step, plan.shards.step) == (5, -1)
    plan = world.plan_restore(members("a", "b"), {"a": held["a"][:2]}, (), known())
    assert (plan.step, plan.shards.step) == (9, 9)


def test_shards_that_are_much_newer_are_taken_by_a_world_of_the_same_size_too():
    stored = [shard(r, 5, tier="storage") for r in range(4)]
    held = {"a": [shard(0, 900), shard(1, 900), *stored]}
    plan = world.plan_restore(members("a", "b"), held, (), known())
    assert (plan.step, plan.shards.step) == (900, 900)


def test_shards_of_a_later_attempt_are_newer_whatever_their_step():
    held = {
        "a": [shard(r, 9, attempt=2) for r in range(4)] + [shard(r, 50, tier="storage") for r in range(4)]
    }
    plan = world.plan_restore(members("a"), held, (), known())
    assert (plan.step, plan.saved_attempt) == (9, 2)


def test_ranks_get_what_one_attempt_has_saved():
    held = {
        "a": [shard(0, 9, attempt=1), shard(1, 9, attempt=1)],
        "b": [shard(2, 9), shard(3, 9)],
    }
    assert world.plan_restore(members("a", "b"), held).step == -1
    held["b"] += [shard(2, 9, attempt=1), shard(3, 9, attempt=1)]
    assert world.plan_restore(members("a", "b"), held).saved_attempt == 1
