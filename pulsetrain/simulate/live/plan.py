"""What goes wrong in a live fleet, where and when: kinds of faults, a plan from TOML, a default plan."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal, cast

from pulsetrain.core.errors import UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.simulate.live.fleet import LiveFleet

Kind = Literal["slow_rank", "slow_node", "hung_rank", "flapping_link", "exit", "silent_node"]
FOREVER_S = 1e12


@dataclass(frozen=True, kw_only=True)
class Key:
    """One key of a fault: its default (None: it must be given), the smallest and the largest value."""

    meaning: str
    default: float | bool | None = None
    least: float = 0.0
    most: float = FOREVER_S

    @property
    def allowed(self) -> str:
        """The values that it may have."""
        if isinstance(self.default, bool):
            return "true or false"
        return f"{self.least:g} or more" if self.most >= FOREVER_S else f"{self.least:g} to {self.most:g}"


@dataclass(frozen=True, kw_only=True)
class FaultKind:
    """What a kind of fault does. `place` is the key that says where it strikes."""

    meaning: str
    place: Literal["rank", "node"]
    keys: Mapping[str, Key]


_FACTOR = Key(meaning="so many times as long for each piece of compute", least=1.0, most=100.0)
_FAILS = Key(meaning="its node fails the self-check before the relaunch", default=False)
KINDS: Mapping[Kind, FaultKind] = MappingProxyType(
    {
        "slow_rank": FaultKind(meaning="one rank computes slower", place="rank", keys={"factor": _FACTOR}),
        "slow_node": FaultKind(
            meaning="all ranks of one node compute slower", place="node", keys={"factor": _FACTOR}
        ),
        "hung_rank": FaultKind(
            meaning="one rank stands still before a collective, and the others wait in it",
            place="rank",
            keys={
                "stopped": Key(meaning="its process is stopped, so that no patience is needed", default=True),
                "fails_check": Key(meaning=_FAILS.meaning, default=True),
            },
        ),
        "flapping_link": FaultKind(
            meaning="one port of a node goes down and comes back, by its counters",
            place="node",
            keys={
                "port": Key(meaning="which port", default=0.0, most=7.0),
                "every_s": Key(meaning="seconds between two flaps", default=5.0, least=1.0),
            },
        ),
        "exit": FaultKind(
            meaning="one rank ends with a code",
            place="rank",
            keys={
                "code": Key(meaning="exit code, minus the number of a signal", least=-64.0, most=255.0),
                "fails_check": _FAILS,
            },
        ),
        "silent_node": FaultKind(
            meaning="an agent sends nothing any more, and its ranks are gone", place="node", keys={}
        ),
    }
)
_TIMES: Mapping[str, Key] = MappingProxyType(
    {
        "at_s": Key(meaning="seconds after the first launch at which it begins"),
        "for_s": Key(meaning="how long it lasts. A relaunch ends a hang too", default=FOREVER_S),
    }
)


@dataclass(frozen=True, kw_only=True, eq=False)
class LiveFault:
    """One fault. It belongs to a piece of hardware: `local_rank` of `node`, -1 for the whole node.

    `rank` is the rank that runs there while nothing was replaced, -1 for a whole node.
    """

    kind: Kind
    at_s: float
    for_s: float
    node: str
    local_rank: int
    rank: int
    numbers: Mapping[str, float]

    def active(self, at_s: float) -> bool:
        """Whether it is there `at_s` seconds after the first launch."""
        return self.at_s <= at_s < self.at_s + self.for_s

    def number(self, key: str) -> float:
        """One of the kind's own keys. A flag is 0 or 1."""
        return self.numbers[key]

    @property
    def subject_type(self) -> str:
        """What a finding of it is about: a rank, a node or a link."""
        return "link" if self.kind == "flapping_link" else "rank" if self.local_rank >= 0 else "node"

    @property
    def subject(self) -> str:
        """What a finding of it names, while nothing was replaced."""
        if self.kind == "flapping_link":
            return f"{self.node}/{port_name(int(self.number('port')))}"
        return self.node if self.local_rank < 0 else str(self.rank)

    @property
    def label(self) -> str:
        """The same for people."""
        return f"rank {self.rank} on {self.node}" if self.local_rank >= 0 else self.subject


@dataclass(frozen=True, kw_only=True)
class FaultRow:
    """One line of `--list-faults`."""

    kind: str
    meaning: str
    keys: str


def port_name(port: int) -> str:
    """Name of a simulated RDMA port."""
    return f"mlx5_{port}/1"


def list_faults() -> list[FaultRow]:
    """Every kind with its keys. A key in brackets has a default."""
    rows = []
    for name, kind in KINDS.items():
        keys = ["at_s", "[for_s]", kind.place]
        keys += [key if each.default is None else f"[{key}]" for key, each in kind.keys.items()]
        rows.append(FaultRow(kind=name, meaning=kind.meaning, keys=" ".join(keys)))
    return rows


def read_plan(path: Path, fleet: LiveFleet) -> tuple[LiveFault, ...]:
    """The faults of a TOML file with tables ``[[fault]]``. Raises `UsageError` that names the value."""
    try:
        tables = tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"--plan {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--plan {path}: {error}") from error
    return parse_plan(tables, fleet, f"--plan {path}")


def parse_plan(tables: Mapping[str, object], fleet: LiveFleet, where: str = "plan") -> tuple[LiveFault, ...]:
    """The faults of a parsed plan, by time. Raises `UsageError` that begins with `where`.

    >>> fleet = LiveFleet(nodes=4)
    >>> [fault] = parse_plan({"fault": [{"kind": "exit", "at_s": 5, "rank": 9, "code": 1}]}, fleet)
    >>> fault.local_rank, fault.label
    (1, 'rank 9 on sim-00001')
    """
    unknown = sorted(tables.keys() - {"fault"})
    if unknown:
        raise UsageError(f"{where}: unknown table {unknown[0]!r}; allowed: [[fault]]")
    listed = tables.get("fault", [])
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise UsageError(f"{where}: fault is no list of tables; write [[fault]]")
    faults = [_fault(each, fleet, f"{where}: fault {number}") for number, each in enumerate(listed, 1)]
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def _fault(table: JsonObject, fleet: LiveFleet, where: str) -> LiveFault:
    if table.get("kind") not in KINDS:
        raise UsageError(f"{where}: kind = {table.get('kind')!r}: allowed: {', '.join(KINDS)}")
    name = cast("Kind", table["kind"])
    kind, where = KINDS[name], f"{where} ({name})"
    keys = {**_TIMES, **kind.keys}
    allowed = ("kind", kind.place, *keys)
    for key in table:
        if key not in allowed:
            raise UsageError(f"{where}: unknown key {key!r}; allowed: {', '.join(allowed)}")
    numbers = {key: _number(table, key, each, where) for key, each in keys.items()}
    node, local_rank = _place(table, kind.place, fleet, where)
    return LiveFault(
        kind=name,
        at_s=numbers.pop("at_s"),
        for_s=numbers.pop("for_s"),
        node=fleet.names[node],
        local_rank=local_rank,
        rank=-1 if local_rank < 0 else node * fleet.ranks_per_node + local_rank,
        numbers=numbers,
    )


def _number(table: JsonObject, key: str, wanted: Key, where: str) -> float:
    value = table.get(key, wanted.default)
    if value is None:
        raise UsageError(f"{where}: {key} is missing; allowed {wanted.allowed}")
    flag = isinstance(wanted.default, bool)
    fits = isinstance(value, bool) if flag else isinstance(value, int | float) and not isinstance(value, bool)
    if not fits or not wanted.least <= value <= wanted.most:
        raise UsageError(f"{where}: {key} = {value!r}: allowed {wanted.allowed}")
    return float(value)


def _place(table: JsonObject, place: str, fleet: LiveFleet, where: str) -> tuple[int, int]:
    """Number of the node, and the rank on it, -1 for all."""
    value = table.get(place)
    if place == "rank":
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < fleet.ranks:
            raise UsageError(f"{where}: rank = {value!r}: allowed 0 to {fleet.ranks - 1}")
        return divmod(value, fleet.ranks_per_node)
    names = fleet.names
    if value not in names:
        raise UsageError(f"{where}: node = {value!r}: allowed {names[0]!r} to {names[-1]!r}")
    return names.index(cast("str", value)), -1


def default_plan(fleet: LiveFleet, seconds: float) -> tuple[LiveFault, ...]:
    """One fault of each kind, one after the other over `seconds`, on places far apart.

    A slow rank is named after some 20 steps, so a short run has little time for each fault.
    """
    share = seconds / 12
    nodes, per_node = fleet.nodes, fleet.ranks_per_node
    local = min(3, per_node - 1)

    def at(part: float) -> int:
        return min(nodes - 1, int(nodes * part))

    faults: list[JsonObject] = [
        {"kind": "slow_rank", "at_s": share, "for_s": 2 * share, "rank": at(0.03) * per_node + local},
        {"kind": "slow_node", "at_s": 3.5 * share, "for_s": 2 * share, "node": fleet.names[at(0.65)]},
        {"kind": "flapping_link", "at_s": 6 * share, "for_s": 1.5 * share, "node": fleet.names[at(0.4)]},
        {"kind": "hung_rank", "at_s": 8 * share, "rank": at(0.25) * per_node + local},
        {"kind": "exit", "at_s": 9.5 * share, "rank": at(0.8) * per_node + local, "code": 1},
        {"kind": "silent_node", "at_s": 11 * share, "node": fleet.names[at(0.9)]},
    ]
    for fault in faults[:2]:
        fault["factor"] = 1.3
    return parse_plan({"fault": faults}, fleet)
