"""What a sink of the wait-for graph is."""

from __future__ import annotations

import pytest

from pulsetrain.analytics.hangs.evidence import RankEvidence, Wait
from pulsetrain.analytics.hangs.sinks import StuckGroup, judge_frozen, judge_lagging, judge_sink
from pulsetrain.analytics.hangs.wait_graph import WaitGraph

PAIR = ("tp", (0, 1))
SECOND = 1_000_000_000


def waits(rank, group=PAIR, seq=4, op="all_reduce", *, started=None, peer=-1, **fields):
    wait = Wait(group=group, seq=seq, op=op, started=started, peer=peer)
    return RankEvidence(rank=rank, waits=(wait,), **{"enqueued": {group: seq}, **fields})


def judged(*ranks, mismatched=(), group=PAIR):
    """The verdict on ranks that all wait for each other in one group."""
    by_rank = {r.rank: r for r in ranks}
    everybody = set(by_rank)
    graph = WaitGraph({r: everybody - {r} for r in by_rank})
    stuck = StuckGroup(
        group=group[0],
        members=group[1],
        seq=4,
        op="all_reduce",
        waiting=tuple(by_rank),
        missing=(),
        mismatched=mismatched,
    )
    return judge_sink(tuple(sorted(by_rank)), by_rank, {group: stuck}, graph, SECOND)


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        (RankEvidence(rank=1), "never joined"),
        (RankEvidence(rank=1, reported=False), "left no trace"),
        (waits(1), "does not finish all_reduce"),
    ],
)
def test_a_single_rank_is_at_fault_for_what_is_known_of_it(evidence, words):
    graph = WaitGraph({0: {1}, 1: set()})
    verdict = judge_sink((1,), {1: evidence}, {}, graph, SECOND)
    assert (verdict.verdict, verdict.culprits) == ("rank", (1,))
    assert words in verdict.reason
    assert "1 other waits for it" in verdict.reason


def test_a_stopped_process_that_others_wait_for_is_nearly_certain():
    stopped = RankEvidence(rank=1, state="stopped")
    waited_for = judge_frozen(stopped, WaitGraph({0: {1}, 1: set()}))
    alone = judge_frozen(stopped, WaitGraph({0: set(), 1: set()}))
    assert waited_for.culprits == alone.culprits == (1,)
    assert waited_for.confidence > alone.confidence


def test_a_mismatch_is_a_desync_and_less_sure_on_a_tie():
    trio = ("dp", (0, 1, 2))
    ranks = [waits(r, trio) for r in range(3)]
    one = judged(*ranks, mismatched=(2,), group=trio)
    tie = judged(waits(0), waits(1), mismatched=(0, 1))
    assert (one.verdict, one.culprits) == ("desync", (2,))
    assert (tie.verdict, tie.culprits) == ("desync", (0, 1))
    assert one.confidence > tie.confidence


def test_the_rank_whose_device_never_began_is_at_fault():
    verdict = judged(waits(0, started=True), waits(1, started=False))
    assert (verdict.verdict, verdict.culprits) == ("rank", (1,))


def test_a_rank_blocked_in_the_kernel_is_at_fault():
    assert judged(waits(0), waits(1, state="disk")).culprits == (1,)


def test_a_rank_outside_communication_is_at_fault():
    assert judged(waits(0, computing=True), waits(1)).culprits == (0,)


def test_a_minority_that_enqueued_less_is_late():
    trio = ("dp", (0, 1, 2))
    ranks = [waits(r, trio, enqueued={trio: 9 if r else 5}) for r in range(3)]
    assert judged(*ranks, group=trio).culprits == (0,)


def test_the_first_silent_needs_a_margin():
    early = judged(waits(0, silence_ns=3 * SECOND), waits(1, silence_ns=SECOND))
    assert early.culprits == (0,)
    assert judged(waits(0, silence_ns=SECOND), waits(1, silence_ns=SECOND)).verdict == "network"


def test_a_send_and_its_recv_that_do_not_move_are_the_network():
    verdict = judged(waits(0, op="send", peer=1), waits(1, op="recv", peer=0))
    assert (verdict.verdict, verdict.culprits) == ("network", ())
    assert "transfer between ranks 0 and 1" in verdict.reason


def test_two_ranks_that_both_send_wait_crosswise():
    verdict = judged(waits(0, op="send", peer=1), waits(1, op="send", peer=0))
    assert (verdict.verdict, verdict.culprits) == ("desync", (0, 1))


def test_hosts_that_stopped_behind_a_culprit_are_those_that_enqueued_the_least():
    groups = {r: (f"dp{r}", (r, r + 10)) for r in range(3)}
    shared = ("world", (0, 1, 2))
    ranks = {
        r: RankEvidence(
            rank=r,
            enqueued={shared: 20 if r else 12},
            waits=(Wait(group=("tp", groups[r][1]), seq=5, op="all_reduce"),),
        )
        for r in range(3)
    }
    (verdict,) = judge_lagging(ranks, {9})
    assert verdict.culprits == (0,)
    assert judge_lagging(ranks, set()) == []  # without a culprit nobody hides behind one


def test_of_ranks_that_wait_in_circles_only_those_that_may_be_at_fault_are_named():
    """Rank 3 joined an all-reduce of all too many. Or its tensor-parallel peer is where it should not be."""
    world, upper, lower, left = ("world", (0, 1, 2, 3)), ("tp", (0, 1)), ("tp", (2, 3)), ("dp", (0, 2))
    ranks = {0: waits(0, left), 1: waits(1, upper), 2: waits(2, lower), 3: waits(3, world)}
    graph = WaitGraph({0: {2}, 1: {0}, 2: {3}, 3: {0, 1, 2}})
    verdict = judge_sink((0, 1, 2, 3), ranks, {}, graph, SECOND)
    assert (verdict.verdict, verdict.culprits, verdict.confidence) == ("desync", (2, 3), 0.5)
    assert "One of ranks 2, 3 is at fault" in verdict.reason
