"""Which port, memory, uplink or node is bad, from transfers between eight nodes under two switches."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.diagnostics.link_tests import REPEATS, LinkTest, Measured, Port, again, judge, rounds

NODES, RAILS = 8, 2


def ports(names=None):
    names = names or [f"n{i}" for i in range(NODES)]
    return [
        Port(node=n, rail=f"r{r}", switch=f"s{i // 4}") for r in range(RAILS) for i, n in enumerate(names)
    ]


class Site:
    """Transfers take 1e10 bits a second, 3 % more or less. `slow` and `lossy` hold parts, `dead` ports."""

    def __init__(self, seed=0, slow=(), lossy=(), dead=(), names=None):
        self.random, self.slow, self.lossy, self.dead = random.Random(seed), set(slow), set(lossy), set(dead)
        self.ports = ports(names)

    def measured(self):
        return [self.measure(t) for transfers in rounds(self.ports, memory="1") for t in transfers]

    def measure(self, transfer):
        parts = set(transfer.parts)
        if {transfer.sender.name, transfer.receiver.name} & self.dead:
            return Measured(transfer=transfer, bits_per_s=0.0, error="timed out")
        rate = 1e10 * self.random.gauss(1, 0.03) * (0.5 if parts & self.slow else 1.0)
        lost = 0.047 if parts & self.lossy else abs(self.random.gauss(0.002, 0.001))
        return Measured(transfer=transfer, bits_per_s=rate, resent_share=lost)

    def verdict(self, **more):
        return judge(self.measured(), **more)


def both(name):
    return [("out", name), ("in", name)]


def test_in_a_round_each_port_sends_and_receives_once_at_most():
    planned = rounds(ports(), memory="1")
    assert [t[0].kind for t in planned] == ["neighbour", "neighbour", "memory", "between", "between"]
    for transfers in planned:
        senders, receivers = ([getattr(t, end) for t in transfers] for end in ("sender", "receiver"))
        assert len(set(senders)) == len(senders) == len(set(receivers)) == NODES * RAILS
        assert all(t.sender.node != t.receiver.node for t in transfers)


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_nobody_is_named_where_all_is_well(seed):
    verdict = Site(seed).verdict()
    assert (verdict.named, verdict.reason) == ((), "")


CASES = {
    "a slow port": ({"slow": both("n3/r1")}, "n3/r1"),
    "a port that is slow in one direction": ({"slow": [("out", "n3/r1")]}, "n3/r1"),
    "a lossy port": ({"lossy": both("n5/r0")}, "n5/r0"),
    "a dead port": ({"dead": ["n6/r0"]}, "n6/r0"),
    "memory far away": ({"slow": [("memory", "n2/r0 to memory 1")]}, "n2/r0 to memory 1"),
    "a slow uplink": ({"slow": [("uplink", "s1/r0")]}, "s1/r0"),
    "a lossy uplink": ({"lossy": [("uplink", "s0/r1")]}, "s0/r1"),
    "a slow node": ({"slow": [*both("n7/r0"), *both("n7/r1")]}, "n7"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_bad_is_named_and_nothing_else(case):
    faults, name = CASES[case]
    for seed in range(5):
        verdict = Site(seed, **faults).verdict()
        assert (verdict.named, verdict.reason) == ((name,), "")


def test_two_bad_parts_are_both_named():
    verdict = Site(slow=both("n0/r0"), lossy=[("uplink", "s1/r1")]).verdict()
    assert verdict.named == ("n0/r0", "s1/r1")
    assert "of the usual rate" in verdict.ports["n0/r0"]
    assert "were lost" in verdict.uplinks["s1/r1"]


def test_a_port_that_went_down_flaps_and_its_transfers_blame_nobody_else():
    verdict = Site(dead=["n1/r0"]).verdict(downs={"n1/r0": 3, "n2/r0": 0})
    assert verdict.ports == {"n1/r0": "went down 3 times"}
    assert verdict.named == ("n1/r0",)


@settings(max_examples=10)
@given(st.permutations([f"n{i}" for i in range(NODES)]))
def test_renaming_nodes_renames_the_answer(names):
    one = Site(3, slow=both("n3/r1")).verdict()
    other = Site(3, slow=both(f"{names[3]}/r1"), names=names).verdict()
    assert (one.named, other.named) == (("n3/r1",), (f"{names[3]}/r1",))


def test_the_order_of_results_changes_nothing():
    measured = Site(1, slow=[("uplink", "s1/r0")], lossy=both("n2/r1")).measured()
    assert judge(measured[::-1]).named == judge(measured).named


def test_a_worse_link_is_never_milder():
    measured = Site(2, slow=both("n3/r1")).measured()
    worse = [m if "n3/r1" not in (m.transfer.sender.name, m.transfer.receiver.name)
             else Measured(transfer=m.transfer, bits_per_s=m.bits_per_s / 3) for m in measured]  # fmt: skip
    assert judge(worse).named == ("n3/r1",)


def test_too_few_transfers_to_compare_are_told():
    few = [Port(node=n, rail="r0", switch="s0") for n in "ab"]
    measured = [Measured(transfer=t, bits_per_s=1.0) for transfers in rounds(few) for t in transfers]
    verdict = judge(measured)
    assert verdict.named == ()
    assert "fewer than 4" in verdict.reason
    assert judge([]).reason == "no transfer was measured"


def test_what_a_busy_processor_slowed_is_measured_again_and_only_that():
    site = Site(5)
    measured = site.measured()
    hit = measured[7]
    measured[7] = Measured(transfer=hit.transfer, bits_per_s=hit.bits_per_s / 3)
    assert again(measured) == [[hit.transfer]]
    measured.append(site.measure(hit.transfer))
    assert again(measured) == []
    assert judge(measured).named == ()


def test_a_bad_link_stays_bad_however_often_it_is_measured():
    site = Site(6, slow=both("n3/r1"), dead=["n6/r0"])
    measured, count = site.measured(), 0
    while planned := again(measured):
        count += 1
        for transfers in planned:
            ends = [(what, name) for t in transfers for what, name in t.parts[:2]]
            assert len(ends) == len(set(ends))
            measured += [site.measure(t) for t in transfers]
    assert count == REPEATS
    assert judge(measured).named == ("n3/r1", "n6/r0")


def test_limits_are_data():
    measured = Site(4, slow=both("n3/r1")).measured()
    assert judge(measured, test=LinkTest(slow_share=0.3)).named == ()
