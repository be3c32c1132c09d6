"""Which transfers are made, and which of them count as bad."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.diagnostics.link_tests import LinkTest, Measured, Port, faults, merged, rounds

NODES, RAILS = 8, 2


def ports(memories=("1",), nodes=NODES):
    return [
        Port(node=f"n{i}", rail=f"r{r}", switch=f"s{i // 4}", memories=memories)
        for r in range(RAILS)
        for i in range(nodes)
    ]


def measured(rate=lambda t: 1e10, lost=lambda t: 0.002):
    planned = [t for transfers in rounds(ports()) for t in transfers]
    return [Measured(transfer=t, bits_per_s=rate(t), resent_share=lost(t)) for t in planned]


def bad(rows, test=None):
    return {m.transfer: why for m, why in zip(rows, faults(rows, test), strict=True) if why}


def test_in_a_round_each_port_sends_and_receives_once_at_most():
    planned = rounds(ports(("1", "2")))
    kinds = ["neighbour", "neighbour", "memory 1", "memory 2", "between", "between"]
    assert [{t.cohort for t in transfers} for transfers in planned] == [
        {f"{kind} on r0", f"{kind} on r1"} for kind in kinds
    ]
    for transfers in planned:
        senders, receivers = ([getattr(t, end) for t in transfers] for end in ("sender", "receiver"))
        assert len(set(senders)) == len(senders) == len(set(receivers)) == NODES * RAILS
        assert all(t.sender.node != t.receiver.node for t in transfers)


def test_a_rail_with_too_few_ways_to_a_memory_is_left_out():
    made = [replace(p, memories=("1",) if p.rail == "r0" or p.node == "n0" else ()) for p in ports()]
    assert {t.sender.rail for transfers in rounds(made) for t in transfers if t.memory} == {"r0"}


@settings(max_examples=25)
@given(st.lists(st.sampled_from([(), ("0",), ("0", "1")]), min_size=3, max_size=12))
def test_a_memory_is_measured_only_where_its_machine_has_it_and_enough_can_be_compared(memories):
    made = [Port(node=f"n{i}", rail="r", switch="", memories=own) for i, own in enumerate(memories)]
    planned = [t for transfers in rounds(made) for t in transfers if t.memory]
    assert all(t.memory in t.receiver.memories for t in planned)
    assert len(planned) == len(set(planned))
    for memory in {t.memory for t in planned}:
        assert sum(t.memory == memory for t in planned) >= 4


def test_a_slow_a_lossy_and_a_failed_transfer_are_bad_each_with_its_reason():
    rows = measured()
    rows[0] = Measured(transfer=rows[0].transfer, bits_per_s=5e9, resent_share=0.002)
    rows[9] = Measured(transfer=rows[9].transfer, bits_per_s=1e10, resent_share=0.047)
    rows[20] = Measured(transfer=rows[20].transfer, bits_per_s=0.0, error="timed out")
    assert bad(rows) == {
        rows[0].transfer: "50% of the usual rate",
        rows[9].transfer: "4.7% of the segments were lost",
        rows[20].transfer: "timed out",
    }


def test_the_way_to_another_memory_is_compared_with_other_ways_to_it():
    rows = measured(rate=lambda t: 6e9 if t.memory else 1e10)
    assert bad(rows) == {}
    first = next(i for i, m in enumerate(rows) if m.transfer.memory)
    rows[first] = Measured(transfer=rows[first].transfer, bits_per_s=3e9, resent_share=0.002)
    assert bad(rows) == {rows[first].transfer: "50% of the usual rate"}


def test_a_rail_of_slower_cards_is_no_fault_and_a_slow_port_of_it_is_bad():
    rows = measured(rate=lambda t: 2.5e9 if t.sender.rail == "r1" else 1e10)
    assert bad(rows) == {}
    first = next(i for i, m in enumerate(rows) if m.transfer.sender.rail == "r1")
    rows[first] = Measured(transfer=rows[first].transfer, bits_per_s=1e9, resent_share=0.002)
    assert bad(rows) == {rows[first].transfer: "40% of the usual rate"}


def test_the_best_of_a_transfer_says_what_is_usual():
    rows = measured()
    again = [Measured(transfer=m.transfer, bits_per_s=2e9, resent_share=0.1) for m in rows]
    assert [m.bits_per_s for m in merged([*again, *rows])] == [1e10] * len(rows)
    failed = [Measured(transfer=m.transfer, bits_per_s=0.0, error="timed out") for m in rows]
    assert merged([*failed, *rows]) == merged(rows)
    assert merged([*rows, *failed]) == merged(rows)


def test_too_few_transfers_of_a_kind_say_nothing():
    rows = measured()[:3]
    rows[0] = Measured(transfer=rows[0].transfer, bits_per_s=1.0)
    assert bad(rows) == {}


@pytest.mark.parametrize(("share", "count"), [(0.75, 0), (0.9, 1)])
def test_limits_are_data(share, count):
    rows = measured()
    rows[0] = Measured(transfer=rows[0].transfer, bits_per_s=8e9, resent_share=0.002)
    assert len(bad(rows, LinkTest(slow_share=share))) == count
