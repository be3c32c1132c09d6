"""Which ports count as far below their own rate."""

from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.diagnostics.link_tests import Measured, Port, rounds
from pulsetrain.diagnostics.port_rates import below_own_rate


def ports(count=6, own=1e11, switches=1):
    return [
        Port(node=f"n{i}", rail="net", switch=f"s{i * switches // count}", own_bits_per_s=own)
        for i in range(count)
    ]


def measured(of, rate):
    return [Measured(transfer=t, bits_per_s=rate(t)) for ts in rounds(of) for t in ts]


def test_ports_that_are_all_slow_alike_are_all_told():
    found = below_own_rate(measured(ports(), lambda t: 2e10))
    assert found == {
        f"n{i}/net": {way: "20% of its own 100 Gbit/s" for way in ("in", "out")} for i in range(6)
    }


@given(st.floats(0.5, 2.0))
def test_ports_that_reach_half_are_good(share):
    assert below_own_rate(measured(ports(), lambda t: 1e11 * share)) == {}


def test_one_slow_port_is_told_in_its_direction_and_its_partners_are_not():
    found = below_own_rate(measured(ports(), lambda t: 2e10 if t.sender.node == "n2" else 9e10))
    assert found == {"n2/net": {"out": "20% of its own 100 Gbit/s"}}


def test_a_port_without_a_rate_has_none_to_be_below():
    assert below_own_rate(measured(ports(own=0.0), lambda t: 1.0)) == {}


def test_a_slower_partner_says_nothing_of_a_faster_port():
    mixed = [*ports(5, 1e11), Port(node="old", rail="net", switch="s0", own_bits_per_s=1e10)]
    rate = lambda t: min(t.sender.own_bits_per_s, t.receiver.own_bits_per_s)  # noqa: E731
    assert below_own_rate(measured(mixed, rate)) == {}
    slow = measured(mixed, lambda t: 2e9 if "old" in (t.sender.node, t.receiver.node) else 9e10)
    assert set(below_own_rate(slow)) == {"old/net"}


def test_one_partner_is_not_enough():
    assert below_own_rate(measured(ports(2), lambda t: 1.0)) == {}


def test_an_uplink_that_is_made_for_less_is_no_fault():
    of = ports(8, switches=2)
    assert below_own_rate(measured(of, lambda t: 9e10 if t.kind == "neighbour" else 1e10)) == {}


def test_a_transfer_that_failed_is_not_a_slow_one():
    planned = [t for transfers in rounds(ports()) for t in transfers]
    rows = [Measured(transfer=t, bits_per_s=0.0, error="timed out") for t in planned]
    assert below_own_rate(rows) == {}
