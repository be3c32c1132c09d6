"""Which node, port or switch a search names, in how many rounds, and when it names nobody."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.diagnostics.link_search import ERROR, MOST_ROUNDS, ROUNDS_BOUND, LinkSearch, comparable
from pulsetrain.diagnostics.link_tests import Measured, Port

BOTH, OUT, IN = ("out", "in"), ("out",), ("in",)


def ports(count, per_switch=0, memories=()):
    switch = (lambda i: f"s{i // per_switch}") if per_switch else (lambda i: "")
    return [Port(node=f"n{i}", rail="net", switch=switch(i), memories=memories) for i in range(count)]


class Network:
    """Transfers take 1e10 bits a second, 3 % more or less. `bad` has ways by port, `factor` is theirs."""

    def __init__(self, of, *, bad=(), uplinks=(), paths=(), memories=(), factor=0.5, spoiled=(), seed=0):
        self.ports, self.bad, self.uplinks, self.paths = of, dict(bad), set(uplinks), set(paths)
        self.memories = set(memories)
        self.factor, self.spoiled, self.random = factor, set(spoiled), random.Random(seed)
        self.number = 0

    def measure(self, transfer):
        self.number += 1
        hit = any(
            (kind in ("out", "in") and kind in self.bad.get(name, ()))
            or (kind == "uplink" and name in self.uplinks)
            or (kind == "memory" and name in self.memories)
            for kind, name in transfer.parts
        )
        hit |= (transfer.sender.node, transfer.receiver.node) in self.paths
        if hit and not self.factor:
            return Measured(transfer=transfer, bits_per_s=0.0, error="timed out")
        rate = 1e10 * self.random.gauss(1, 0.03) * (self.factor if hit else 1.0)
        rate *= 0.3 if self.number in self.spoiled else 1.0
        return Measured(transfer=transfer, bits_per_s=rate)

    def search(self):
        search = LinkSearch(self.ports)
        while planned := search.next_round():
            for end in ("sender", "receiver"):
                assert len({getattr(t, end) for t in planned}) == len(planned)
            search.take([self.measure(t) for t in planned])
        return search.verdict()


def named(verdict):
    return {culprit.name for culprit in verdict.culprits}


@st.composite
def faulty_fleets(draw):
    """Up to four faulty of n nodes, n at least five times as many, each bad in one direction or both."""
    k = draw(st.integers(0, 4))
    count = draw(st.integers(max(3, 5 * k), 40))
    faulty = draw(st.lists(st.integers(0, count - 1), min_size=k, max_size=k, unique=True))
    ways = draw(st.lists(st.sampled_from([BOTH, OUT, IN]), min_size=k, max_size=k))
    factor = draw(st.sampled_from([0.0, 0.1, 0.5]))
    return count, dict(zip(faulty, ways, strict=True)), factor, draw(st.integers(0, 10**6))


@settings(max_examples=150, deadline=None)
@given(faulty_fleets())
def test_the_faulty_are_named_and_no_healthy_one_within_the_rounds_that_are_stated(fleet):
    count, faulty, factor, seed = fleet
    bad = {f"n{i}/net": ways for i, ways in faulty.items()}
    verdict = Network(ports(count), bad=bad, factor=factor, seed=seed).search()
    assert {culprit.node for culprit in verdict.culprits} == {f"n{i}" for i in faulty}
    assert verdict.reason == ""
    assert verdict.rounds <= ROUNDS_BOUND
    kinds = {culprit.node: culprit.kind for culprit in verdict.culprits}
    assert kinds == {f"n{i}": "node" if ways == BOTH else "port" for i, ways in faulty.items()}
    assert all(culprit.broken == (factor == 0) for culprit in verdict.culprits)


@settings(max_examples=60, deadline=None)
@given(st.integers(3, 40), st.sampled_from([0, 2, 4]), st.integers(0, 10**6))
def test_nobody_is_named_where_all_is_well(count, per_switch, seed):
    verdict = Network(ports(count, per_switch), seed=seed).search()
    assert (verdict.state, verdict.reason) == ("healthy", "")
    assert verdict.rounds <= 4


def test_a_processor_that_was_busy_now_and_then_names_somebody_once_in_a_thousand_searches():
    wrong = 0
    for seed in range(1000):
        draw = random.Random(seed)
        spoiled = draw.sample(range(1, 81), draw.randint(0, 8))
        wrong += bool(Network(ports(draw.randint(8, 24), 4), spoiled=spoiled, seed=seed).search().culprits)
    assert wrong <= 1000 * 2 * ERROR


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["s0", "s1", "s2"]), st.sampled_from([0.0, 0.5]), st.integers(0, 10**6))
def test_an_uplink_is_the_switchs_and_no_nodes(switch, factor, seed):
    verdict = Network(ports(12, 4), uplinks={f"{switch}/net"}, factor=factor, seed=seed).search()
    assert [(c.kind, c.name, c.node) for c in verdict.culprits] == [("switch", switch, "")]


def test_a_switch_is_named_alone_also_where_its_one_rail_is_a_port_of_a_card():
    of = [replace(port, rail="mlx5_0/1") for port in ports(12, 4)]
    verdict = Network(of, uplinks={"s1/mlx5_0/1"}).search()
    assert [(c.kind, c.name) for c in verdict.culprits] == [("switch", "s1")]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(6, 24),
    st.sampled_from([0, 6]),
    st.sampled_from([0.0, 0.5]),
    st.integers(0, 3),
    st.integers(0, 10**6),
)
def test_a_port_that_is_slow_towards_one_memory_is_named_with_it_and_nobody_else(
    count, per_switch, factor, node, seed
):
    name = f"n{node}/net to memory 1"
    of = ports(count, per_switch, memories=("1", "2"))
    verdict = Network(of, memories={name}, factor=factor, seed=seed).search()
    assert [(c.kind, c.name, c.node) for c in verdict.culprits] == [("memory", name, f"n{node}")]
    assert (verdict.reason, verdict.culprits[0].broken) == ("", factor == 0)


def test_of_the_memories_behind_a_bad_port_nothing_is_said():
    verdict = Network(ports(8, memories=("1",)), bad={"n3/net": IN}).search()
    assert [(c.kind, c.name) for c in verdict.culprits] == [("port", "n3/net")]
    assert verdict.reason == ""


class Flapping(Network):
    """Port n2 takes nothing in a share of transfers, and never when it sends or the other memory receives."""

    def __init__(self, *args, share, **options):
        super().__init__(*args, **options)
        self.share = share

    def measure(self, transfer):
        away = "n2/net" in (transfer.sender.name, transfer.receiver.name)
        always = transfer.memory or transfer.sender.node == "n2"
        if away and (always or self.random.random() < self.share):
            return Measured(transfer=transfer, bits_per_s=0.0, error="timed out")
        return super().measure(transfer)


@settings(max_examples=40, deadline=None)
@given(st.integers(6, 16), st.floats(0.2, 0.8), st.integers(0, 10**6))
def test_a_port_that_flaps_is_named_or_in_doubt_and_not_the_memory_behind_it(count, share, seed):
    found = Flapping(ports(count, memories=("1",)), seed=seed, share=share).search()
    assert {(c.kind, c.node) for c in found.culprits} <= {("port", "n2"), ("node", "n2")}
    assert found.culprits or "n2/net" in found.reason


def test_a_port_that_flaps_half_of_the_time_is_named():
    found = [Flapping(ports(12, memories=("1",)), seed=seed, share=0.5).search() for seed in range(40)]
    assert sum(bool(verdict.culprits) for verdict in found) >= 38


class ComesAndGoes(Network):
    """Port n2 takes and sends nothing in a share of transfers, whichever they are."""

    def __init__(self, *args, share, **options):
        super().__init__(*args, **options)
        self.share = share

    def measure(self, transfer):
        if "n2/net" in (transfer.sender.name, transfer.receiver.name) and self.random.random() < self.share:
            return Measured(transfer=transfer, bits_per_s=0.0, error="timed out")
        return super().measure(transfer)


@pytest.mark.parametrize(("count", "per_switch"), [(8, 4), (12, 0), (24, 4)])
def test_a_port_that_is_good_once_is_named_and_not_the_memory_behind_it(count, per_switch):
    of = ports(count, per_switch, memories=("1",))
    found = [ComesAndGoes(of, seed=seed, share=0.8).search() for seed in range(60)]
    kinds = [culprit.kind for verdict in found for culprit in verdict.culprits]
    assert kinds.count("memory") <= 1
    assert {c.node for verdict in found for c in verdict.culprits} <= {"n2", ""}
    assert sum(any(c.node == "n2" for c in verdict.culprits) for verdict in found) >= 40
    reasons = [c.reason for verdict in found for c in verdict.culprits]
    assert any("it comes and goes: bad in" in reason for reason in reasons)


class Disturbed(Network):
    """The first transfers that port n2 takes beside its memory are slow, as on a busy machine."""

    def __init__(self, *args, times, **options):
        super().__init__(*args, **options)
        self.times = times

    def measure(self, transfer):
        measured = super().measure(transfer)
        if transfer.receiver.node != "n2" or transfer.memory or not self.times:
            return measured
        self.times -= 1
        return replace(measured, bits_per_s=3e9)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(("count", "per_switch"), [(8, 4), (12, 0), (24, 4)])
def test_a_slow_memory_is_named_though_its_port_was_disturbed(count, per_switch, times):
    of = ports(count, per_switch, memories=("1",))
    for seed in range(3):
        network = Disturbed(of, memories={"n2/net to memory 1"}, times=times, seed=seed)
        found = network.search()
        assert [(c.kind, c.name) for c in found.culprits] == [("memory", "n2/net to memory 1")], found
        assert not found.reason


def test_memories_without_trouble_name_nobody_and_leave_the_switches_as_they_are():
    of = ports(8, 4, memories=("1",))
    assert comparable(of) == of
    assert Network(of).search().state == "healthy"


def test_a_port_of_many_bad_paths_is_named_and_not_the_paths():
    bad = {("n2", "n0"), ("n1", "n2"), ("n3", "n2"), ("n2", "n3")}
    verdict = Network(ports(8, 4), paths=bad, factor=0.0).search()
    assert [(c.kind, c.name, c.broken) for c in verdict.culprits] == [("node", "n2", False)]


def test_two_bad_paths_of_one_port_are_told_as_paths():
    verdict = Network(ports(12, 6), paths={("n2", "n3"), ("n1", "n2")}).search()
    assert {c.kind for c in verdict.culprits} == {"path"}


def test_a_path_between_two_good_ports_is_told_and_blames_neither():
    verdict = Network(ports(8), paths={("n1", "n2")}).search()
    assert [(c.kind, c.name, c.node) for c in verdict.culprits] == [("path", "n1/net to n2/net", "")]


def test_of_three_nodes_the_bad_one_is_named():
    verdict = Network(ports(3), bad={"n1/net": BOTH}).search()
    assert [(c.kind, c.name) for c in verdict.culprits] == [("node", "n1")]


def test_a_healthy_node_that_met_only_bad_ones_is_cleared():
    verdict = Network(ports(10), bad={"n4/net": IN, "n5/net": IN}).search()
    assert named(verdict) == {"n4/net", "n5/net"}


def test_where_most_look_bad_nobody_is_named_and_the_reason_is_told():
    verdict = Network(ports(6), bad={f"n{i}/net": BOTH for i in range(6)}, factor=0).search()
    assert (verdict.state, verdict.culprits) == ("inconclusive", ())
    assert verdict.reason
    assert verdict.rounds <= MOST_ROUNDS


@pytest.mark.parametrize("seed", range(20))
def test_where_rates_scatter_wildly_a_healthy_port_is_not_named(seed):
    class Busy(Network):
        def measure(self, transfer):
            done = super().measure(transfer)
            return replace(done, bits_per_s=done.bits_per_s * self.random.choice([0.4, 0.6, 0.9, 1.0, 1.0]))

    assert not Busy(ports(16, 4), seed=seed).search().culprits
    found = Busy(ports(16, 4), bad={"n3/net": BOTH}, factor=0.2, seed=seed).search()
    assert {c.node for c in found.culprits} <= {"n3"}
    assert found.culprits or found.reason


def test_without_a_measurement_nothing_is_known():
    assert LinkSearch(ports(4)).verdict().reason == "no transfer was measured"


@pytest.mark.parametrize(("sizes", "kept"), [((2, 2), True), ((1, 1, 1), False), ((4, 4), True)])
def test_switches_too_small_to_compare_are_left_out(sizes, kept):
    made = [
        Port(node=f"{s}{i}", rail="", switch=f"s{s}") for s, size in enumerate(sizes) for i in range(size)
    ]
    assert (comparable(made) == made) is kept


def test_ports_that_are_all_below_their_own_rate_are_named_though_none_is_slower_than_others():
    of = [replace(port, own_bits_per_s=1e11) for port in ports(8, 4)]
    verdict = Network(of).search()
    assert [(c.kind, c.name, c.own_rate) for c in verdict.culprits] == [
        ("port", port.name, True) for port in of
    ]
    assert verdict.culprits[0].reason.startswith("in: 10% of its own 100 Gbit/s; out: ")
    assert not Network([replace(port, own_bits_per_s=1.2e10) for port in of]).search().culprits


def test_a_port_that_is_slower_than_others_is_named_once_and_for_that():
    of = [replace(port, own_bits_per_s=1.2e10) for port in ports(8)]
    verdict = Network(of, bad={"n3/net": BOTH}, factor=0.2).search()
    assert [(c.kind, c.name, c.own_rate) for c in verdict.culprits] == [("node", "n3", False)]


def test_ports_meet_other_switches_once_nothing_below_is_in_doubt_and_without_those_that_are_bad():
    network, search, kinds = Network(ports(12, 4), bad={"n3/net": BOTH}), LinkSearch(ports(12, 4)), []
    while planned := search.next_round():
        kinds.append({t.kind for t in planned})
        assert not any("n3" in (t.sender.node, t.receiver.node) for t in planned if t.kind == "between")
        search.take([network.measure(t) for t in planned])
    assert named(search.verdict()) == {"n3"}
    assert kinds[-2:] == [{"between"}] * 2
    assert {"between"} not in kinds[:-2]


def search_with_rates(rates, per_switch, slow, takes):
    """The verdict on ports of these rates, where the port `slow` takes `takes` at most."""
    fleet = [
        Port(node=f"n{i}", rail="net", switch=f"s{i // per_switch}", link_bits_per_s=rate)
        for i, rate in enumerate(rates)
    ]

    def rate(transfer):
        lowest = min(transfer.sender.link_bits_per_s, transfer.receiver.link_bits_per_s)
        return min(lowest, takes) if transfer.receiver.name == slow else lowest

    search = LinkSearch(fleet)
    while planned := search.next_round():
        search.take([Measured(transfer=t, bits_per_s=rate(t)) for t in planned])
    return search.verdict()


def test_a_slower_other_end_clears_no_port_so_that_its_neighbour_is_not_blamed():
    """n3 takes 40 Gbit/s of 100. All that slower ports send gets through, and n2 is its only neighbour."""
    verdict = search_with_rates([25e9, 100e9, 100e9, 100e9, 25e9], 2, "n3/net", 40e9)
    assert named(verdict) <= {"n3/net"}
    assert named(verdict) or "n3/net inwards is in doubt" in verdict.reason


def test_of_mixed_ports_a_fast_one_that_is_slow_is_named_by_other_fast_ones():
    verdict = search_with_rates([25e9, 100e9, 100e9, 100e9] * 3, 12, "n3/net", 40e9)
    assert named(verdict) == {"n3/net"}


@pytest.mark.parametrize("per_switch", [2, 3, 8])
@pytest.mark.parametrize("rates", [[100e9] + [25e9] * 7, [25e9, 100e9] * 4, [25e9, 100e9, 100e9] * 3])
def test_ports_of_different_rates_that_are_all_well_are_healthy(rates, per_switch):
    assert search_with_rates(rates, per_switch, "", 0).state == "healthy"
