"""Who sits where, and from where state comes back."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.protocol.messages import Held, Hello
from pulsetrain.recovery import world


def hello(node, nproc=2):
    return Hello(
        node=node,
        address="127.0.0.1",
        job="j",
        pid=1,
        nproc_per_node=nproc,
        nnodes=2,
        max_restarts=3,
        peer_port=1,
    )


def held(step, ranks, tier="memory"):
    return tuple(Held(rank=r, step=step, tier=tier) for r in ranks)


def test_the_lowest_name_is_node_rank_zero_in_whatever_order_nodes_join():
    members = world.form_world([hello("c"), hello("a"), hello("b")], 2)
    assert [(p.node, p.node_rank) for p in members] == [("a", 0), ("b", 1)]


def test_a_declared_standby_is_chosen_last():
    standby = dataclasses.replace(hello("a"), standby=True)
    assert [p.node for p in world.form_world([standby, hello("c"), hello("b")], 2)] == ["b", "c"]
    assert [p.node for p in world.form_world([standby, hello("c")], 2)] == ["a", "c"]


def test_nodes_of_an_earlier_world_are_taken_first_and_keep_their_ranks():
    hellos = [hello(name) for name in "abcz"]
    members = world.form_world(hellos, 3, before=["z", "gone", "b"])
    assert [(p.node, p.node_rank) for p in members] == [("z", 0), ("a", 1), ("b", 2)]


def test_a_standby_takes_the_lost_place_and_survivors_keep_theirs():
    members = world.form_world([hello("a"), hello("b"), hello("c")], 3)
    after = world.replace_nodes(members, ["b", "c"], [hello("z")])
    assert {p.node: p.node_rank for p in after} == {"z": 0, "b": 1, "c": 2}


def test_without_a_standby_the_place_waits_for_a_later_one():
    members = world.form_world([hello("a"), hello("b")], 2)
    waiting = world.replace_nodes(members, ["b"], [])
    after = world.replace_nodes(waiting, ["b"], [hello("z")])
    assert {p.node: p.node_rank for p in after} == {"z": 0, "b": 1}


def test_ranks_and_nodes_answer_each_other():
    members = world.form_world([hello("a"), hello("b")], 2)
    assert [world.node_of(members, r) for r in range(5)] == ["a", "a", "b", "b", ""]


def test_the_newest_common_step_wins_and_own_memory_is_nearest():
    members = world.form_world([hello("a"), hello("b")], 2)
    plan = world.plan_restore(
        members,
        {"a": held(7, [0, 1]) + held(8, [0, 1]) + held(7, [2, 3], "peer"), "b": held(7, [2, 3])},
    )
    assert plan.step == 7
    assert plan.sources == {0: "memory", 1: "memory", 2: "memory", 3: "memory"}


def test_a_lost_node_comes_back_from_its_peer_and_storage_is_last():
    members = world.form_world([hello("a"), hello("z")], 2)
    plan = world.plan_restore(
        members, {"a": held(5, [0]) + held(5, [1, 2], "storage") + held(5, [3], "peer"), "z": ()}
    )
    assert plan.sources == {0: "memory", 1: "storage", 2: "storage", 3: "peer:a"}


def test_a_rank_that_nobody_holds_means_a_fresh_start():
    members = world.form_world([hello("a"), hello("b")], 2)
    assert world.plan_restore(members, {"a": held(5, [0, 1, 2])}).step == -1


@given(
    st.dictionaries(
        st.sampled_from(["a", "b", "s"]),
        st.lists(
            st.builds(
                Held,
                rank=st.integers(0, 4),
                step=st.integers(0, 3),
                tier=st.sampled_from(["memory", "peer", "storage"]),
            )
        ),
    )
)
def test_a_plan_names_only_what_is_held_and_no_newer_common_step_exists(holdings):
    members = world.form_world([hello("a"), hello("b")], 2)
    plan = world.plan_restore(members, holdings)
    by_step = {}
    for items in holdings.values():
        for item in items:
            by_step.setdefault(item.step, set()).add(item.rank)
    common = [s for s, ranks in by_step.items() if {0, 1, 2, 3} <= ranks]
    assert plan.step == max(common, default=-1)
    assert set(plan.sources) == (set(range(4)) if common else set())
    for rank, source in plan.sources.items():
        owner = world.node_of(members, rank) if source == "memory" else source.removeprefix("peer:")
        candidates = (
            holdings.get(owner, [])
            if source != "storage"
            else [h for items in holdings.values() for h in items]
        )
        assert any(h.rank == rank and h.step == plan.step for h in candidates)


def replica(step, rank, *, attempt=0, saved_by=2, tier="memory"):
    return Held(rank=rank, step=step, tier=tier, world=saved_by, attempt=attempt, replicated=True)


def own_copy(step, rank, *, attempt=0, tier="memory"):
    return Held(rank=rank, step=step, tier=tier, attempt=attempt)


def plan_for(nodes, held, unrestorable=()):
    members = world.form_world([hello(n, nproc=1) for n in nodes], len(nodes))
    return world.plan_restore(members, held, unrestorable)


def test_what_a_script_abandoned_by_going_back_is_not_restored():
    before = [Held(rank=r, step=s, tier="storage", attempt=0) for s in (950, 1000) for r in (0, 1)]
    since = [Held(rank=r, step=951, tier="memory", attempt=0, history=1) for r in (0, 1)]
    whole = {"a": [*before, since[0]], "b": [*before, since[1]]}
    assert plan_for("ab", whole).step == 951
    assert plan_for("ab", {**whole, "b": before}).step == 950  # what one of the ranks saved since is lost
    assert plan_for("ab", {"a": before, "b": before}).step == 1000


def test_what_a_script_abandoned_is_better_than_a_fresh_start():
    """Numbers of steps that begin again in each epoch. A node is lost just after that."""
    before = [Held(rank=r, step=s, tier="storage", attempt=0) for s in (900, 1000) for r in (0, 1)]
    since = [Held(rank=0, step=1, tier="memory", attempt=0, history=1)]
    plan = plan_for("ab", {"a": [*before, *since], "b": []})
    assert (plan.step, set(plan.sources.values()), plan.abandoned) == (1000, {"storage"}, True)
    both = [*since, Held(rank=1, step=1, tier="peer", attempt=0, history=1)]
    plan = plan_for("ab", {"a": [*before, *both], "b": []})
    assert (plan.step, plan.abandoned) == (1, False)


def test_a_plan_says_of_which_history_its_step_is():
    before = [Held(rank=r, step=7, tier="storage", attempt=0) for r in (0, 1, 2)]
    since = [Held(rank=0, step=7, tier="memory", attempt=0, history=1)]  # fewer than half have gone back
    plan = plan_for("abc", {"a": [*before, *since], "b": [], "c": []})
    assert (plan.step, plan.saved_history, plan.sources[0]) == (7, 0, "storage")


def test_states_from_before_and_after_the_script_went_back_are_never_mixed():
    before = [Held(rank=1, step=7, tier="storage", attempt=0)]
    since = [Held(rank=0, step=7, tier="memory", attempt=0, history=1)]
    assert plan_for("ab", {"a": [*before, *since], "b": []}).step == -1


def test_one_copy_of_a_replicated_state_is_enough_for_a_world_of_any_size():
    plan = plan_for("ab", {"a": [replica(9, 0, attempt=3, saved_by=1)], "b": []})
    assert (plan.step, plan.replica_attempt) == (9, 3)
    assert plan.sources == {0: "memory", 1: "peer:a"}


def test_what_a_world_of_another_size_saved_in_parts_is_never_used():
    parts = [Held(rank=r, step=9, tier="memory", world=4) for r in range(4)]
    assert plan_for("ab", {"a": parts, "b": parts}).step == -1


def test_each_rank_keeps_its_own_where_a_copy_of_another_is_no_newer():
    held = {"a": [replica(9, 0)], "b": [replica(9, 1)]}
    assert plan_for("ab", held).replica_attempt == -1
    newer = {"a": [replica(9, 0), replica(10, 0)], "b": [replica(9, 1)]}
    assert plan_for("ab", newer).sources == {0: "memory", 1: "peer:a"}


@pytest.mark.parametrize("make", [replica, own_copy])
def test_a_later_attempt_is_newer_whatever_its_step(make):
    """It began anew, or went on from an earlier step that was not in doubt."""
    held = {"a": [make(3000, r, attempt=2) for r in (0, 1)] + [make(5000, r, tier="storage") for r in (0, 1)]}
    plan = plan_for("a", held)
    assert (plan.step, plan.order) == (3000, (2, 3000))
    assert set(plan.sources.values()) == {"memory"}


def test_of_two_attempts_that_saved_a_step_the_newer_one_counts_for_all_ranks():
    held = {"a": [replica(9, 0, attempt=2, saved_by=1)], "b": [replica(9, 1, attempt=0)]}
    plan = plan_for("ab", held)
    assert (plan.replica_attempt, plan.sources) == (2, {0: "memory", 1: "peer:a"})


def test_a_copy_on_a_node_outside_the_world_counts_too():
    kept = plan_for("ab", {"z": [replica(9, 0, saved_by=1)]})
    assert kept.sources == {0: "peer:z", 1: "peer:z"}
    stored = plan_for("ab", {"z": [replica(9, 0, saved_by=1, tier="storage")]})
    assert stored.sources == {0: "storage", 1: "storage"}


def test_a_step_that_was_whole_nowhere_is_not_taken_from_a_copy():
    held = {"a": [replica(8, 0, saved_by=1), replica(9, 0, saved_by=1)]}
    assert plan_for("ab", held, unrestorable={(1, 9)}).step == 8
