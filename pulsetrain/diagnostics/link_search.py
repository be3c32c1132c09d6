"""Which node, port or switch is bad, in few rounds of transfers between nodes. Pure.

Adaptive group testing over the transfers of `link_tests`. The first rounds are the same for all: two
neighbours under the same switch, and one of them at its other memory nodes. A transfer uses parts: the
sender's port outwards, the receiver's port inwards and its memory, and between switches the uplink of the
sender's switch. All parts of a good transfer are good, but a port that is much faster than the other end of
it. Each part that is still in doubt is then measured
beside parts that are good, all of them at the same time. It is named if it was bad there often enough and
never good anywhere.

How often is enough is known from the good parts: a busy processor spoils a share p of their measurements.
With chance p^n it spoils n in a row. So n is chosen such that any healthy part of a search is named with a
chance of about `ERROR`. On quiet machines 4 are enough. Where more than `MOST_TRIES` would be needed, nobody
is named.

Ports under different switches meet once nothing below the switches is in doubt any more, and without the
ports that are bad there. So a bad port slows no transfer that asks for an uplink.

A port that flaps may be good once. So a port that was bad more often than a busy processor explains is
measured again, and it is named if no healthy one is bad so often. Until it is known to be steady, the memory
behind it is named only if it was bad far more often than the port, turn by turn.

A healthy port that only met bad ones is cleared before anybody is named. With at most a fifth of the ports
bad, `ROUNDS_BOUND` rounds are enough on quiet machines. A port that is far below its own rate is named as
well (`port_rates`), also where all are slow alike.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import nlargest
from operator import itemgetter

from pulsetrain.diagnostics import port_rates
from pulsetrain.diagnostics.link_tests import (
    LEAST_PEERS,
    LinkTest,
    Measured,
    Part,
    Port,
    Transfer,
    faults,
    rounds,
    rounds_between,
    rounds_within,
)

LEAST_NODES = 3
TRIES = 4
"""how often a part must be bad beside good ones at least"""
MOST_TRIES = 8
ERROR = 0.001
"""chance that a search names any healthy part, if what spoils one measurement does not spoil the next"""
LIKELY = 0.05
"""chance to be bad so often, below which a port that was good too is measured again"""
ROUNDS_BOUND = 8
"""rounds that are enough while at most a fifth of the ports are bad"""
MOST_ROUNDS = 16
"""rounds after which the search is given up"""
PATIENT_ROUNDS = 8
"""rounds before times may count as too scattered: fewer say little of that"""
SHARED_PATHS = 3
"""bad paths to several ports that make the port at their common end bad"""
MOST_SHARE = 1 / 3
"""of the ports. If more look bad, it is not known what is usual"""
_BOTH = {"out", "in"}


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """Something that is bad. `kind` is node, port, memory, switch or path. `node` is "" for a switch.

    A node's ports are bad in both directions. A path is bad between two ports that are good with others. The
    way from a good port to a memory node of its machine may be bad.
    """

    kind: str
    name: str
    node: str
    reason: str
    broken: bool = False
    """nothing got through"""
    own_rate: bool = False
    """it is far below its own rate. Others may be as slow, so another node need not be better"""
    only_told: bool = False
    """nobody knows whether the job uses it"""

    @property
    def evicts(self) -> bool:
        """Whether another node would be better for the job."""
        return not (self.own_rate or self.only_told)

    def row(self) -> dict[str, object]:
        """The culprit as JSON-able evidence."""
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True)
class SearchVerdict:
    """What a search found. `reason` says why something is not known, "" where all is."""

    culprits: Sequence[Culprit] = field(default_factory=tuple)
    reason: str = ""
    rounds: int = 0
    transfers: int = 0

    @property
    def state(self) -> str:
        """One of found, inconclusive and healthy."""
        if self.culprits:
            return "found"
        return "inconclusive" if self.reason else "healthy"


class LinkSearch:
    """Plans the rounds of one search and judges them. The order of `ports` decides who is paired."""

    def __init__(self, ports: Sequence[Port], test: LinkTest | None = None) -> None:
        self._ports, self._test = capped(comparable(ports)), test
        self._planned = deque(rounds_within(self._ports))
        self._went_between = False
        self._measured: list[Measured] = []
        self.rounds = 0

    def next_round(self) -> list[Transfer]:
        """The transfers of the next round. Empty once all is known, or nothing more can be.

        Each port sends once and receives once at most.
        """
        if not self._planned and self.rounds < MOST_ROUNDS:
            confirming = self._confirming()
            if confirming or self._went_between:
                return confirming
            self._went_between = True
            self._planned.extend(rounds_between(self._passed()))
        return self._planned.popleft() if self._planned else []

    def take(self, measured: Sequence[Measured]) -> None:
        """Take in the results of the round that was asked for."""
        self.rounds += 1
        self._measured += measured

    def verdict(self) -> SearchVerdict:
        """What is known after the rounds so far."""
        state = _State.of(self._measured, self._test)
        certain = [
            p for p in state.suspects if state.tries(p) >= state.needed and not state.is_behind_unsteady(p)
        ]
        culprits = _ports([*certain, *state.flapping, *state.shared], state, self._ports)
        behind = _behind(self._ports, culprits)
        culprits += _memories([part for part in certain if part[1] not in behind], state)
        culprits += _switches(certain, state, self._ports)
        culprits += _paths(state, {c.name for c in culprits} | {c.node for c in culprits})
        behind = _behind(self._ports, culprits)
        doubtful = [p for p in state.suspects if p not in certain and p[1] not in behind]
        named = {port.name for port in self._ports if _named(port, culprits)}
        doubtful += [part for part in state.not_steady if part[1] not in named]
        reasons = [f"{_said(p)}: {state.why(p)}" for p in doubtful]
        if reasons and state.needed > MOST_TRIES:
            reasons = ["times scatter too much to tell a bad port from a busy machine", *reasons]
        worked = Counter(m.transfer.cohort for m in self._measured if not m.error)
        reasons += [
            f"{cohort}: fewer than {LEAST_PEERS} transfers to compare"
            for cohort in dict.fromkeys(m.transfer.cohort for m in self._measured)
            if worked[cohort] < LEAST_PEERS
        ]
        if len({c.name for c in culprits if c.node}) > MOST_SHARE * len(self._ports):
            reasons = ["more than a third of the ports look bad, so it is not known what is usual"]
            culprits = []
        culprits += _below_own_rate(self._measured, culprits, self._ports)
        if not self._measured:
            reasons = ["no transfer was measured"]
        return SearchVerdict(
            culprits=tuple(culprits),
            reason="; ".join(reasons),
            rounds=self.rounds,
            transfers=len(self._measured),
        )

    def _passed(self) -> list[Port]:
        """The ports of which nothing is in doubt below their switch."""
        suspects = _State.of(self._measured, self._test).suspects
        doubtful = {name for what, name in suspects if what in _BOTH}
        return [port for port in self._ports if port.name not in doubtful]

    def _confirming(self) -> list[Transfer]:
        """Measure each part in doubt beside good parts, and bad paths between good ports again."""
        state = _State.of(self._measured, self._test)
        if state.needed > MOST_TRIES and self.rounds >= PATIENT_ROUNDS:
            return []
        doubtful = [p for p in state.suspects if state.tries(p) < state.needed or state.is_behind_unsteady(p)]
        if self.rounds % 2:  # so that a port and the memory behind it take turns
            doubtful = [*state.open, *doubtful]
        else:
            doubtful += state.open
        wanted = [self._beside_good(part, state) for part in doubtful]
        wanted += [[t] for t in state.paths() if state.counts[t] < state.needed]
        taken: set[Part] = set()
        chosen: list[Transfer] = []
        for choices in wanted:
            for transfer in choices:
                ends = {("out", transfer.sender.name), ("in", transfer.receiver.name)}
                if not ends & taken:
                    taken |= ends
                    chosen.append(transfer)
                    break
        return chosen

    def _beside_good(self, part: Part, state: _State) -> list[Transfer]:
        """Transfers whose only part in doubt is `part`, the fewest measured first, neighbours first."""
        possible = [
            t
            for t in self._using(part)
            if part in t.proves and all(p in state.good for p in t.parts if p != part)
        ]
        return sorted(possible, key=lambda t: (state.counts[t], t.kind != "neighbour"))

    def _using(self, part: Part) -> Iterator[Transfer]:
        """Every transfer that could use a part."""
        what, name = part
        for port in self._ports:
            if name not in _names(what, port):
                continue
            for other in self._ports:
                if other.rail != port.rail or other.node == port.node:
                    continue
                if what == "memory":
                    to = _transfer(other, port)
                    yield from (replace(to, kind="memory", memory=memory) for memory in port.memories)
                else:
                    yield _transfer(other, port) if what == "in" else _transfer(port, other)


def _names(what: str, port: Port) -> list[str]:
    """The parts of one kind that a port has or uses, by name."""
    if what == "uplink":
        return [f"{port.switch}/{port.rail}"]
    return [port.memory_name(memory) for memory in port.memories] if what == "memory" else [port.name]


def comparable(ports: Sequence[Port]) -> list[Port]:
    """The ports, without switches where these leave too few transfers of a kind to compare.

    >>> [port.switch for port in comparable([Port(node=n, rail="", switch=n) for n in "abc"])]
    ['', '', '']
    """
    planned = {t for transfers in rounds([replace(p, machine="") for p in ports]) for t in transfers}
    kinds = Counter(t.cohort for t in planned if not t.memory)
    if all(count >= LEAST_PEERS for count in kinds.values()):
        return list(ports)
    return [replace(port, switch="") for port in ports]


def capped(ports: Sequence[Port]) -> list[Port]:
    """The ports, none with a rate above that of the fastest port of another node that it can send to.

    >>> [p.link_bits_per_s for p in capped([Port(node=n, rail="", switch="", link_bits_per_s=r)
    ...                                     for n, r in (("a", 100e9), ("b", 25e9), ("c", 25e9))])]
    [25000000000.0, 25000000000.0, 25000000000.0]
    """
    fastest: dict[str, dict[str, float]] = {}  # of each node, by rail
    for port in ports:
        rates = fastest.setdefault(port.rail, {})
        rates[port.node] = max(port.link_bits_per_s, rates.get(port.node, 0.0))
    first_two = {rail: nlargest(2, rates.items(), key=itemgetter(1)) for rail, rates in fastest.items()}
    return [replace(port, link_bits_per_s=_takeable(port, first_two[port.rail])) for port in ports]


def _takeable(port: Port, fastest: Sequence[tuple[str, float]]) -> float:
    """What another node can take of a port's rate, of the two `fastest` nodes of its rail."""
    others = [rate for node, rate in fastest if node != port.node and rate > 0]
    return min([port.link_bits_per_s, *others[:1]])


def tries_needed(spoiled: int, measured: int, parts: int) -> int:
    """How often a part must be bad in a row, where so many measurements of good parts were spoiled.

    >>> tries_needed(0, 40, 32), tries_needed(4, 40, 32), tries_needed(16, 40, 32)
    (4, 5, 12)
    """
    share = (spoiled + 0.5) / (measured + 1)
    return max(TRIES, math.ceil(math.log(ERROR / max(1, parts)) / math.log(share)))


@dataclass(frozen=True, kw_only=True)
class _State:
    """What all measurements so far say. `bad` has transfers that were never good.

    `counts` is how often each transfer was measured, and `spoiled` how often it was bad.
    """

    bad: Mapping[Transfer, str]
    good: frozenset[Part]
    counts: Mapping[Transfer, int]
    spoiled: Mapping[Transfer, int]
    errors: frozenset[Transfer]
    suspects: tuple[Part, ...]

    @classmethod
    def of(cls, measured: Sequence[Measured], test: LinkTest | None) -> _State:
        reasons = faults(measured, replace(test or LinkTest(), deviations=0.0))
        worked_well = {m.transfer for m, why in zip(measured, reasons, strict=True) if not why}
        bad = {
            m.transfer: why for m, why in zip(measured, reasons, strict=True) if m.transfer not in worked_well
        }
        counts = Counter(m.transfer for m in measured)
        good = frozenset(part for t in counts if t not in bad for part in t.proves)
        suspects = dict.fromkeys(part for t in bad for part in t.parts if part not in good)
        worked = {m.transfer for m in measured if not m.error}
        errors = frozenset(t for t in bad if t not in worked)
        return cls(
            bad=bad,
            good=good,
            counts=counts,
            spoiled=Counter(m.transfer for m, why in zip(measured, reasons, strict=True) if why),
            errors=errors,
            suspects=tuple(suspects),
        )

    @cached_property
    def needed(self) -> int:
        """How often a part must be bad. Ports that may come and go say nothing of busy processors."""
        apart = {name for _, name in self.unsteady}
        usual = [
            t
            for t in self.counts
            if self.good.issuperset(t.parts)
            and not (t in self.bad and self.counts[t] >= TRIES)  # it may be the path
            and not {t.sender.name, t.receiver.name} & apart
        ]
        spoiled, tries = sum(self.spoiled[t] for t in usual), sum(self.counts[t] for t in usual)
        return tries_needed(spoiled, tries, len(self.good) + len(self.suspects))

    def alone(self, part: Part) -> list[Transfer]:
        """Bad transfers whose other parts are all good."""
        return [t for t in self.bad if part in t.parts and self.good.issuperset({*t.parts} - {part})]

    def tries(self, part: Part) -> int:
        """How often a part was bad beside good ones."""
        return sum(self.counts[t] for t in self.alone(part))

    def paths(self) -> list[Transfer]:
        """Bad transfers of which every part is good with others."""
        return [t for t in self.bad if self.good.issuperset(t.parts)]

    def tally(self, part: Part) -> tuple[int, int]:
        """In how many transfers beside good parts a part was bad, and that with how often it was good.

        Each transfer is bad once at most: the path may be bad, or the port at its other end comes and goes.
        """
        beside = [t for t in self.counts if part in t.parts and self.good.issuperset({*t.parts} - {part})]
        bad = sum(1 for t in beside if self.spoiled[t])
        return bad, bad + sum(self.counts[t] - self.spoiled[t] for t in beside)

    def chance(self, part: Part) -> float:
        """The chance that a healthy part is bad as often as this one, as often as others were spoiled."""
        bad, tries = self.tally(part)
        others = [t for t in self.counts if self.good.issuperset(t.parts) and t not in self.bad]
        apart = [t for t in others if part[1] not in (t.sender.name, t.receiver.name)]
        share = (sum(self.spoiled[t] for t in apart) + 0.5) / (sum(self.counts[t] for t in apart) + 1)
        return sum(math.comb(tries, k) * share**k * (1 - share) ** (tries - k) for k in range(bad, tries + 1))

    @cached_property
    def unsteady(self) -> tuple[Part, ...]:
        """Ways of ports that were good, and bad more often than is likely."""
        once_bad = {part for t in self.spoiled for part in t.parts if part[0] in _BOTH}
        return tuple(part for part in sorted(once_bad & self.good) if self._is_unsteady(part))

    def _is_unsteady(self, part: Part) -> bool:
        """Bad once counts where a memory behind the port is in doubt, until it was good `TRIES` times."""
        bad, tries = self.tally(part)
        behind = any(what == "memory" and name.startswith(f"{part[1]} ") for what, name in self.suspects)
        counts = bad >= 2 or (bad == 1 and behind and tries - bad < TRIES)
        return counts and self.chance(part) < LIKELY

    @cached_property
    def not_steady(self) -> tuple[Part, ...]:
        """Those of them that were bad more often than any healthy one would be."""
        least = ERROR / max(1, len(self.good) + len(self.suspects))
        return tuple(p for p in self.unsteady if self.chance(p) <= least)

    @cached_property
    def flapping(self) -> tuple[Part, ...]:
        """Those of them that were bad half of the time or more."""
        return tuple(p for p in self.not_steady if self._mostly_bad(p))

    @cached_property
    def certain_paths(self) -> list[Transfer]:
        """Paths that were bad often enough."""
        return [t for t in self.paths() if self.counts[t] >= self.needed]

    @cached_property
    def shared(self) -> tuple[Part, ...]:
        """Ways of ports at an end of `SHARED_PATHS` bad paths, with more than one port at the other end."""
        ends: dict[str, list[tuple[Part, str]]] = {}
        for t in self.certain_paths:
            ends.setdefault(t.sender.name, []).append((("out", t.sender.name), t.receiver.name))
            ends.setdefault(t.receiver.name, []).append((("in", t.receiver.name), t.sender.name))
        many = [e for e in ends.values() if len(e) >= SHARED_PATHS and len({other for _, other in e}) > 1]
        return tuple(dict.fromkeys(way for e in many for way, _ in e))

    def _mostly_bad(self, part: Part) -> bool:
        bad, tries = self.tally(part)
        return bad >= TRIES and 2 * bad >= tries

    @cached_property
    def open(self) -> list[Part]:
        """Those of them that may still turn out to be either."""
        return [p for p in self.unsteady if p not in self.flapping and self.tally(p)[1] < 2 * TRIES]

    def is_behind_unsteady(self, part: Part) -> bool:
        """Whether a part is a memory behind a port that comes and goes, and that may be all."""
        if part[0] != "memory":
            return False
        ports = [self.tally(port) for port in self.unsteady if part[1].startswith(f"{port[1]} ")]
        return any(((bad + 0.5) / (tries + 1)) ** self.tries(part) > ERROR for bad, tries in ports)

    def why(self, part: Part) -> str:
        """The reason of the first bad transfer that uses a part, of those beside good parts if possible."""
        if part in self.good:
            return "it comes and goes: bad in {} of {} transfers".format(*self.tally(part))
        using = self.alone(part) or [t for t in self.bad if part in t.parts]
        return self.bad[using[0]]


def _transfer(sender: Port, receiver: Port) -> Transfer:
    same = sender.switch == receiver.switch
    return Transfer(kind="neighbour" if same else "between", sender=sender, receiver=receiver)


def _behind(ports: Sequence[Port], culprits: Sequence[Culprit]) -> set[str]:
    """The memories behind ports that are named."""
    return {port.memory_name(m) for port in ports for m in port.memories if _named(port, culprits)}


def _named(port: Port, culprits: Sequence[Culprit]) -> bool:
    """Whether a port is named. What is behind it cannot be told from it then."""
    return any(c.name == port.name or (c.kind, c.name) == ("node", port.node) for c in culprits)


def _said(part: Part) -> str:
    what, name = part
    said = {"out": f"{name} outwards", "in": f"{name} inwards", "memory": name}
    return f"{said.get(what, f'{what} {name}')} is in doubt"


def _ports(certain: Sequence[Part], state: _State, ports: Sequence[Port]) -> list[Culprit]:
    """Ports that are bad, and nodes whose ports are all bad in both directions."""
    ways: dict[str, dict[str, Part]] = {}
    for part in certain:
        if part[0] in _BOTH:
            ways.setdefault(part[1], {})[part[0]] = part
    by_node: dict[str, list[Port]] = {}
    for port in ports:
        by_node.setdefault(port.node, []).append(port)
    named: list[Culprit] = []
    for node, own in by_node.items():
        bad = [port.name for port in own if port.name in ways]
        whole = bool(bad) and all(ways.get(port.name, {}).keys() == _BOTH for port in own)
        for name in bad[:1] if whole else bad:
            used = [t for part in ways[name].values() for t in state.alone(part)]
            good = state.good & {*ways[name].values()}
            named.append(
                Culprit(
                    kind="node" if whole else "port",
                    name=node if whole else name,
                    node=node,
                    reason="; ".join(f"{way}: {state.why(ways[name][way])}" for way in sorted(ways[name])),
                    broken=bool(used) and all(t in state.errors for t in used) and not good,
                )
            )
    return named


def _below_own_rate(
    measured: Sequence[Measured], named: Sequence[Culprit], ports: Sequence[Port]
) -> list[Culprit]:
    """Ports that are far below their own rate and not named yet."""
    below = port_rates.below_own_rate(measured)
    return [
        Culprit(
            kind="port",
            name=port.name,
            node=port.node,
            reason="; ".join(f"{way}: {why}" for way, why in sorted(below[port.name].items())),
            own_rate=True,
        )
        for port in ports
        if port.name in below and not _named(port, named)
    ]


def _memories(certain: Sequence[Part], state: _State) -> list[Culprit]:
    """Ways from a port to a memory node that are bad."""
    return [
        Culprit(
            kind="memory",
            name=name,
            node=name.partition("/")[0],
            reason=state.why((what, name)),
            broken=all(t in state.errors for t in state.alone((what, name))),
        )
        for what, name in certain
        if what == "memory"
    ]


def _switches(certain: Sequence[Part], state: _State, ports: Sequence[Port]) -> list[Culprit]:
    """Switches whose uplink is bad, with the rail where there are several."""
    uplinks = [part for part in certain if part[0] == "uplink"]
    rails = {port.rail for port in ports}
    return [
        Culprit(
            kind="switch",
            name=part[1].removesuffix(f"/{min(rails)}") if len(rails) == 1 else part[1],
            node="",
            reason=f"uplink: {state.why(part)}",
            broken=all(t in state.errors for t in state.alone(part)),
        )
        for part in uplinks
    ]


def _paths(state: _State, named: set[str]) -> list[Culprit]:
    """Bad paths between good ports. Of a port that is named or not steady they say nothing."""
    named = named | {name for _, name in state.not_steady}
    return [
        Culprit(
            kind="path",
            name=f"{t.sender.name} to {t.receiver.name}",
            node="",
            reason=f"{state.bad[t]}. Both ports are good with others",
            broken=t in state.errors,
        )
        for t in state.certain_paths
        if not {t.sender.name, t.receiver.name, t.sender.node, t.receiver.node} & named
    ]
