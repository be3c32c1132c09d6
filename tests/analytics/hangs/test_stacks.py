"""Whose stack differs: published and planted cases, and the laws every analyzer keeps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.analytics.hangs.stacks import MAIN, MIN_SAMPLES, RankStack, combine, compare, lines, tree
from pulsetrain.analytics.selection import ranges

SYNC = ("train (train.py:40)", "step (train.py:20)", "all_reduce (distributed/distributed_c10d.py:3000)")
LOAD = ("train (train.py:40)", "read (data.py:7)")


def stack(frames, *ranks, thread=MAIN):
    return RankStack(thread=thread, frames=tuple(frames), ranks=tuple(ranks))


def mesh(tp, pp, dp):
    """The groups of a job whose ranks count tp first, then dp, then pp."""
    rank = {(t, d, p): t + tp * (d + dp * p) for t in range(tp) for d in range(dp) for p in range(pp)}
    groups = []
    for axis, name in enumerate(("tp", "dp", "pp")):
        others = {tuple(c for i, c in enumerate(place) if i != axis) for place in rank}
        for number, fixed in enumerate(sorted(others)):
            members = [
                r for place, r in rank.items() if tuple(c for i, c in enumerate(place) if i != axis) == fixed
            ]
            groups.append((f"{name}{number}", tuple(sorted(members))))
    return groups


def test_one_rank_elsewhere_is_named_with_its_place():
    comparison = compare([stack(SYNC, 0, 1, 2, 4, 5, 6, 7), stack(LOAD, 3)])
    assert (comparison.state, comparison.outliers, comparison.group) == ("outlier", (3,), None)
    assert "rank 3 in train (train.py:40) > read (data.py:7)" in comparison.sentence


def test_the_published_case_ends_in_the_pipeline_group():
    # machines 0-11 in gradient sync, 12 and 13 in irecv, 14 in isend, 15 in all_gather
    groups = [("pp3", (12, 13, 14, 15)), ("dp0", (0, 4, 8, 12)), ("all", tuple(range(16)))]
    stacks = [
        stack(SYNC, *range(12)),
        stack([*SYNC[:2], "irecv (c10d.py:1)"], 12, 13),
        stack([*SYNC[:2], "isend (c10d.py:1)"], 14),
        stack([*SYNC[:2], "all_gather (c10d.py:1)"], 15),
    ]
    comparison = compare(stacks, groups)
    assert comparison.outliers == (12, 13, 14, 15)
    assert comparison.group == ("pp3", (12, 13, 14, 15))


def test_stages_stand_in_different_places_and_their_replicas_in_the_same():
    groups = mesh(1, 4, 4)
    stages = [stack(["train (t.py:1)", f"stage{p} (t.py:{p})"], *range(4 * p, 4 * p + 4)) for p in range(4)]
    assert compare(stages, groups).state == "no_consensus"
    odd = [s if 6 not in s.ranks else stack(s.frames, 4, 5, 7) for s in stages] + [stack(LOAD, 6)]
    assert compare(odd, groups).outliers == (6,)


def test_lines_of_one_loop_are_one_place():
    comparison = compare([stack(("train (t.py:1)",), 0, 1), stack(("train (t.py:2)",), 2)])
    assert comparison.state == "alike"


def test_halves_that_differ_are_no_consensus():
    assert compare([stack(SYNC, 0), stack(LOAD, 1)]).state == "no_consensus"


def test_what_cannot_be_read_is_blind_and_said_once():
    comparison = compare([], blind={0: "not allowed", 1: "not allowed", 5: "gone"})
    assert comparison.state == "blind"
    assert comparison.sentence == "No stack could be read: not allowed (ranks 0-1); gone (ranks 5)."
    partly = compare([stack(SYNC, 0, 1, 2), stack(LOAD, 3)], blind={4: "gone"})
    assert partly.brief()["blind"] == [{"reason": "gone", "ranks": "4"}]


def test_thousands_of_reasons_make_one_sentence():
    comparison = compare([], blind={rank: f"node {rank}: gone" for rank in range(5000)})
    assert comparison.sentence.endswith("node 3: gone (ranks 3); and 4,996 more reasons.")


def test_nothing_asked_is_blind_not_alike():
    assert compare([]).state == "blind"
    assert compare([stack(SYNC, 0, thread="loader")]).state == "blind"


def seen(*odd, size=8, **more):
    """A sample in which these of some ranks stand elsewhere."""
    usual = stack(SYNC, *[r for r in range(size) if r not in odd])
    return compare([usual, *([stack(LOAD, *odd)] if odd else [])], **more)


def test_an_outlier_stands_elsewhere_in_every_sample_and_not_only_in_some():
    comparison = combine([seen(3), seen(3, 5), seen(2, 3)])
    assert (comparison.state, comparison.outliers, comparison.wavering) == ("outlier", (3,), (2, 5))
    assert comparison.sentence.endswith("So in 3 samples in a row.")
    unsure = combine([seen(3), seen(5), seen(3)])
    assert (unsure.state, unsure.outliers, unsure.wavering) == ("no_consensus", (), (3, 5))
    assert "(ranks 3,5 in some)" in unsure.sentence


def test_one_sample_accuses_nobody_and_those_that_could_not_be_read_do_not_vote():
    blind = compare([], blind={0: "gone"})
    assert combine([seen(3)]).state == "no_consensus"
    assert combine([blind, seen(3)]).outliers == ()
    assert combine([seen(3), blind, seen(3)]).outliers == (3,)
    assert combine([blind, blind]).state == "blind"


def test_samples_that_agree_that_all_stand_alike_say_so():
    assert combine([seen(), seen()]).state == "alike"
    assert combine([seen(3), seen()]).state == "no_consensus"


def test_the_group_is_that_of_the_outliers():
    groups = [("pp0", (0, 1)), ("pp1", (2, 3)), ("pp2", (4, 5))]
    comparison = combine([seen(2, 3), seen(2, 3, 4), seen(2, 3, 5)], groups)
    assert (comparison.outliers, comparison.group) == ((2, 3), ("pp1", (2, 3)))


SAMPLES = st.lists(st.frozensets(st.integers(0, 7), max_size=3), min_size=MIN_SAMPLES, max_size=5)


@given(SAMPLES, st.randoms(), st.integers(0, 1000))
def test_the_order_of_samples_and_the_names_of_ranks_change_no_outlier(odd, random, shift):
    samples = [seen(*ranks) for ranks in odd]
    plain = combine(samples)
    assert set(plain.outliers) == frozenset.intersection(*odd)
    random.shuffle(samples)
    assert combine(samples).outliers == plain.outliers
    names = [{r + shift for r in ranks} for ranks in odd]
    moved = [
        compare([stack(SYNC, *({r + shift for r in range(8)} - n)), *([stack(LOAD, *n)] if n else [])])
        for n in names
    ]
    assert combine(moved).outliers == tuple(r + shift for r in plain.outliers)
    assert combine([*samples, seen()]).outliers == ()  # another sample never accuses more


PLACES = st.lists(st.sampled_from([SYNC, LOAD, ("a (b:1)",), ()]), min_size=1, max_size=12)


@given(PLACES, st.randoms())
def test_order_changes_nothing_and_splitting_a_fold_neither(places, random):
    apart = [stack(frames, rank) for rank, frames in enumerate(places)]
    together = [stack(f, *[r for r, g in enumerate(places) if g == f]) for f in set(places)]
    shuffled = apart[:]
    random.shuffle(shuffled)
    assert compare(apart) == compare(shuffled) == compare(together)
    assert tree(apart) == tree(together)


@given(PLACES, st.integers(1, 1000))
def test_renaming_ranks_renames_the_answer(places, shift):
    plain = compare([stack(f, r) for r, f in enumerate(places)])
    moved = compare([stack(f, r + shift) for r, f in enumerate(places)])
    assert moved.outliers == tuple(r + shift for r in plain.outliers)
    assert moved.state == plain.state


@given(PLACES)
def test_the_tree_holds_every_rank_at_every_depth(places):
    (root,) = tree([stack(f, r) for r, f in enumerate(places)])
    assert root["ranks"] == ranges(range(len(places)))
    for branch in root["children"]:
        assert branch["ranks"] == ranges(r for r, f in enumerate(places) if f and f[0] == branch["frame"])


def test_text_is_indented_where_ranks_part():
    drawn = lines(tree([stack(SYNC, 0, 1, 2, 3, 6), stack((*SYNC[:2], "forward (model.py:3)"), 5)]))
    assert drawn == [
        "0-3,5-6: MainThread",
        "0-3,5-6: train (train.py:40)",
        "0-3,5-6: step (train.py:20)",
        "  0-3,6: all_reduce (distributed/distributed_c10d.py:3000)",
        "  5: forward (model.py:3)",
    ]


@pytest.mark.parametrize("size", [3, 64, 4096])
def test_a_large_job_with_one_outlier(size):
    odd = size // 2
    comparison = compare([stack(SYNC, *[r for r in range(size) if r != odd]), stack(LOAD, odd)])
    assert comparison.outliers == (odd,)
