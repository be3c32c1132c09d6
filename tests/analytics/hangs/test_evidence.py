"""What is known of each rank."""

from __future__ import annotations

import pytest

from pulsetrain.analytics.hangs.evidence import HashedGroupKey, RankEvidence, Wait

GROUP = ("dp", (0, 1))


def test_a_hashed_key_finds_what_a_plain_tuple_stored():
    table = {("dp", (1, 9)): "here"}
    assert table[HashedGroupKey("dp", [9, 1])] == "here"
    assert HashedGroupKey("dp", [9, 1]) != HashedGroupKey("tp", [9, 1])


@pytest.mark.parametrize("op", ["all_to_all_v", "barrier", "gather", "coalesced"])
def test_payloads_that_may_differ_are_no_part_of_the_signature(op):
    assert Wait(group=GROUP, seq=1, op=op, size="a").signature == Wait(group=GROUP, seq=1, op=op).signature


def test_the_payload_of_an_all_reduce_is_part_of_its_signature():
    small, large = (Wait(group=GROUP, seq=1, op="all_reduce", size=s) for s in ("4", "8"))
    assert small.signature != large.signature
    assert small.collective == large.collective


def test_the_oldest_wait_is_the_first_of_the_program():
    late = Wait(group=GROUP, seq=1, op="all_reduce", order=7)
    early = Wait(group=("tp", (0, 2)), seq=9, op="all_reduce", order=2)
    assert RankEvidence(rank=0, waits=(late, early)).oldest_wait is early
    assert RankEvidence(rank=0).oldest_wait is None
