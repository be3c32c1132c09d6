"""The diagnosis of a hang from the evidence of its ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.analytics.hangs.evidence import RankEvidence, Wait
from pulsetrain.analytics.hangs.hang import diagnose
from pulsetrain.protocol.transfer_peer import ANY_SOURCE

WORLD = ("world", (0, 1, 2, 3))


def waits(rank, group=WORLD, seq=8, op="all_reduce", **fields):
    """A rank that has enqueued a collective and waits for it."""
    wait = Wait(group=group, seq=seq, op=op)
    return RankEvidence(rank=rank, enqueued={group: seq}, completed={group: seq - 1}, waits=(wait,), **fields)


def behind(rank, group=WORLD, seq=7, **fields):
    """A rank that never enqueued the collective that its peers wait in."""
    return RankEvidence(rank=rank, enqueued={group: seq}, completed={group: seq}, **fields)


@pytest.mark.parametrize("late", range(4))
def test_the_rank_that_never_joined_is_at_fault_and_the_others_are_victims(late):
    diagnosis = diagnose([behind(r) if r == late else waits(r) for r in range(4)])
    assert (diagnosis.verdict, diagnosis.culprits) == ("rank", (late,))
    assert diagnosis.victims == tuple(r for r in range(4) if r != late)


@given(st.permutations(range(4)))
def test_the_order_of_evidence_changes_nothing(order):
    ranks = [waits(0), waits(1), behind(2), waits(3)]
    assert diagnose([ranks[i] for i in order]) == diagnose(ranks)


def test_a_collective_that_all_joined_is_the_network():
    diagnosis = diagnose([waits(r) for r in range(4)])
    assert (diagnosis.verdict, diagnosis.culprits, diagnosis.group) == ("network", (), WORLD)


def test_nobody_waiting_is_no_hang():
    assert diagnose([behind(r) for r in range(4)]).verdict == "none"
    assert diagnose([]).verdict == "none"


def test_every_rank_stopped_names_nobody():
    diagnosis = diagnose([waits(r, state="stopped") for r in range(4)])
    assert (diagnosis.verdict, diagnosis.culprits) == ("uncertain", ())


def test_while_the_job_moves_only_stopped_ranks_are_blamed():
    ranks = [waits(0), behind(1, state="stopped"), behind(2), waits(3)]
    assert diagnose(ranks, stalled=False).culprits == (1,)
    assert set(diagnose(ranks, stalled=True).culprits) == {1, 2}


def test_a_rank_that_nobody_heard_of_is_at_fault_where_it_alone_explains_the_wait():
    diagnosis = diagnose([waits(0), waits(1), waits(2)])
    assert (diagnosis.verdict, diagnosis.culprits) == ("rank", (3,))
    assert "left no trace" in diagnosis.reason


def test_blame_runs_through_a_rank_that_waits_itself():
    pair = ("tp", (3, 4))
    through = RankEvidence(
        rank=3, enqueued={WORLD: 7, pair: 2}, waits=(Wait(group=pair, seq=2, op="all_gather"),)
    )
    diagnosis = diagnose([waits(0), waits(1), waits(2), through, behind(4, pair, 1)])
    assert diagnosis.culprits == (4,)
    assert diagnosis.victims == (0, 1, 2, 3)


def test_a_receiver_waits_for_a_sender_that_never_sent():
    pair = ("pp", (0, 1))
    receives = RankEvidence(rank=1, waits=(Wait(group=pair, seq=3, op="recv", peer=0),))
    diagnosis = diagnose([RankEvidence(rank=0, computing=True), receives])
    assert diagnosis.culprits == (0,)


@pytest.mark.parametrize("late", [1, 2])
def test_a_receive_from_any_source_waits_for_the_member_that_sends_nothing(late):
    takes = RankEvidence(rank=0, waits=(Wait(group=WORLD, seq=3, op="recv", peer=ANY_SOURCE),))
    others = [RankEvidence(rank=r, computing=True) if r == late else waits(r) for r in (1, 2, 3)]
    assert diagnose([takes, *others]).culprits == (late,)


def test_a_receive_from_any_source_whose_sender_is_there_is_the_network():
    takes = RankEvidence(rank=0, waits=(Wait(group=WORLD, seq=3, op="recv", peer=ANY_SOURCE),))
    sends = RankEvidence(rank=2, waits=(Wait(group=WORLD, seq=1, op="send", peer=0),))
    others = [RankEvidence(rank=r, waits=(Wait(group=WORLD, seq=1, op="send", peer=2),)) for r in (1, 3)]
    assert diagnose([takes, sends, *others]).verdict == "network"


def test_the_first_to_fall_silent_is_blamed_only_with_a_margin():
    ranks = [waits(r, silence_ns=5_000_000_000 if r == 2 else 3_000_000_000) for r in range(4)]
    assert diagnose(ranks, margin_ns=1_000_000_000).culprits == (2,)
    assert diagnose(ranks, margin_ns=3_000_000_000).verdict == "network"


def test_a_longer_silence_is_never_less_sure():
    def confidence(silence_ns):
        ranks = [waits(r, silence_ns=silence_ns if r == 2 else 0) for r in range(4)]
        diagnosis = diagnose(ranks)
        return diagnosis.confidence if diagnosis.culprits == (2,) else 0.0

    levels = [confidence(ns) for ns in (0, 10**9, 10**10, 10**12)]
    assert levels == sorted(levels)


def test_the_answer_says_which_groups_wait_and_who_is_missing():
    answer = diagnose([waits(0), waits(1), waits(2), behind(3)]).answer(["a note"])
    (group,) = answer["groups"]
    assert (group["group"], group["seq"], group["missing"], group["sink"]) == ("world", 8, (3,), True)
    assert answer["notes"] == ["a note"]
    assert answer["culprits"] == [3]


def test_duplicate_evidence_of_a_rank_counts_once():
    ranks = [waits(0), waits(1), waits(2), behind(3)]
    assert diagnose([*ranks, *ranks]) == diagnose(ranks)


def two_faults(large=("dp", (0, 1, 2, 3, 4, 5)), small=("tp", (6, 7))):
    """Rank 0 does not finish what five peers finished, rank 7 what one finished. The six wait for rank 0."""
    pending = [Wait(group=(f"pp{r}", (0, r)), seq=1, op="all_reduce") for r in range(1, 6)]
    peers = [
        RankEvidence(
            rank=r,
            enqueued={large: 9, wait.group: 1},
            completed={large: 9, wait.group: 0},
            waits=(wait,),
        )
        for r, wait in enumerate(pending, start=1)
    ]
    wait = Wait(group=("ep", (6, 7)), seq=4, op="all_reduce")
    six = RankEvidence(
        rank=6, enqueued={small: 9, wait.group: 4}, completed={small: 9, wait.group: 3}, waits=(wait,)
    )
    behind_pp = {w.group: 0 for w in pending}
    first = Wait(group=large, seq=9, op="all_reduce")
    zero = RankEvidence(
        rank=0,
        enqueued={large: 9, **behind_pp},
        completed={large: 8, **behind_pp},
        waits=(first,),
    )
    last = Wait(group=small, seq=9, op="all_reduce")
    seven = RankEvidence(
        rank=7,
        enqueued={small: 9, wait.group: 3},
        completed={small: 8, wait.group: 3},
        waits=(last,),
    )
    return [zero, *peers, six, seven]


def test_a_second_fault_that_strands_fewer_is_named_beside_the_first():
    diagnosis = diagnose(two_faults())
    assert (diagnosis.verdict, diagnosis.culprits) == ("rank", (0, 7))
    assert diagnosis.confidence == 0.9


@given(st.permutations(range(8)))
def test_two_faults_are_named_in_any_order(order):
    ranks = two_faults()
    assert diagnose([ranks[i] for i in order]).culprits == (0, 7)


def test_a_rank_stranded_by_a_mismatch_is_left_out_and_costs_confidence():
    world = ("world", tuple(range(6)))

    def member(rank, size):
        wait = Wait(group=world, seq=9, op="all_reduce", size=size)
        return RankEvidence(rank=rank, enqueued={world: 9}, completed={world: 8}, waits=(wait,))

    def peer(rank, *keys):
        waits = tuple(Wait(group=key, seq=1, op="all_reduce") for key in keys)
        enqueued = {world: 9} | dict.fromkeys(keys, 1)
        return RankEvidence(
            rank=rank, enqueued=enqueued, completed={world: 9} | dict.fromkeys(keys, 0), waits=waits
        )

    waiting_for_zero = [peer(r, (f"pp{r}", (0, r))) for r in (2, 3, 4)]
    diagnosis = diagnose([member(0, "64"), member(1, "4"), *waiting_for_zero, peer(5, ("pp5", (1, 5)))])
    assert diagnosis.culprits == (0,)
    assert diagnosis.confidence < 0.9
    assert diagnosis.reason.endswith("never found its peers: 1")


def in_groups(rank, op, group, *idle):
    """A rank in the operation 8 of a group, with 7 operations done in `idle` groups."""
    wait = Wait(group=group, seq=8, op=op)
    enqueued = {group: 8} | dict.fromkeys(idle, 7)
    return RankEvidence(
        rank=rank, enqueued=enqueued, completed=dict.fromkeys(enqueued, 7), waits=(wait,), blocked=True
    )


@pytest.mark.parametrize("extra", range(4))
def test_of_ranks_in_different_groups_the_one_that_all_circles_go_through_is_named(extra):
    """Two by two ranks. One joins a collective of the world that nobody else is in."""
    row = {r: ("tp", (r - r % 2, r - r % 2 + 1)) for r in range(4)}
    column = {r: ("dp", (r % 2, r % 2 + 2)) for r in range(4)}
    mate, below = extra ^ 1, extra ^ 2
    ranks = [
        in_groups(extra, "all_reduce", WORLD, row[extra], column[extra]),
        in_groups(mate, "all_gather", row[extra], WORLD, column[mate]),
        in_groups(below, "reduce_scatter", column[extra], WORLD, row[below]),
        in_groups(extra ^ 3, "all_gather", row[below], WORLD, column[mate]),
    ]
    diagnosis = diagnose(ranks)
    assert (diagnosis.verdict, diagnosis.culprits, diagnosis.proven) == ("desync", (extra,), True)
    assert set(diagnosis.victims) == set(range(4)) - {extra}
    assert diagnosis.confidence < 0.9


@pytest.mark.parametrize("told", ["dp", ""])
def test_operations_of_other_threads_are_no_proof_beside_data_that_flows(told):
    """Threads of ranks 0 to 2 save in a group of their own. All main threads wait for gradients."""
    members = tuple(range(8))
    saving, training = ("save", members), ("dp", members)

    def rank(number, saves):
        gradients = Wait(group=training, seq=30, op="all_reduce", order=-1)
        saved = Wait(group=saving, seq=8, op="gather", order=-2)
        return RankEvidence(
            rank=number,
            enqueued={training: 30, saving: 8 if saves else 7},
            completed={training: 29, saving: 7},
            waits=(saved, gradients) if saves else (gradients,),
            blocked=True,
            waits_in=told,
        )

    diagnosis = diagnose([rank(r, r < 3) for r in members])
    assert not diagnosis.proven
    if told:
        assert (diagnosis.verdict, diagnosis.culprits) == ("network", ())


def test_in_a_circle_of_three_nobody_is_named_before_the_others():
    pairs = [("a", (0, 1)), ("b", (1, 2)), ("c", (0, 2))]
    ranks = [
        in_groups(0, "all_reduce", pairs[0], pairs[2]),
        in_groups(1, "all_reduce", pairs[1], pairs[0]),
        in_groups(2, "all_reduce", pairs[2], pairs[1]),
    ]
    assert diagnose(ranks).culprits == (0, 1, 2)
