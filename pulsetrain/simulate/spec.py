"""What fleet to simulate, and what is wrong with it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType

from pulsetrain.core.errors import UsageError

FOREVER = 1 << 60


@dataclass(frozen=True, kw_only=True)
class FleetFault:
    """One planted fault in steps `since`..`until`. `numbers` are the parameters of its kind."""

    kind: str
    since: int = 0
    until: int = FOREVER
    numbers: Mapping[str, float] = field(default_factory=dict)
    node: str = ""

    def rank(self) -> int:
        """The affected rank. -1: all."""
        return int(self.numbers.get("rank", -1))

    def affects(self, step: int) -> bool:
        """Whether `step` is affected."""
        return self.since <= step <= self.until


# kind -> its required parameters, and its optional ones with their defaults
KINDS: Mapping[str, tuple[tuple[str, ...], Mapping[str, float]]] = MappingProxyType(
    {
        "straggler": (("factor",), {"rank": -1}),
        "drift": (("rank", "per_step"), {}),
        "slow_all": (("factor",), {}),
        "slow_link": (("rank", "factor"), {}),
        "stage": (("stage", "factor"), {}),
        "sequence": (("spread",), {}),
        "data_stall": (("seconds",), {"rank": -1}),
        "gc": (("rank", "seconds", "every"), {}),
        "nan": ((), {}),
        "loss_spike": (("factor",), {}),
        "silent": ((), {"rank": -1}),
        "hang": (("rank",), {}),
    }
)
_COMMON = ("since", "until", "node")
_WHOLE = ("rank", "stage", "every", "since", "until")


def parse_fault(text: str) -> FleetFault:
    """A fault from ``kind:key=value,...``. Raises `UsageError` that names what is allowed.

    >>> parse_fault("straggler:rank=371,factor=1.1,since=50").numbers["factor"]
    1.1
    """
    kind, _, rest = text.partition(":")
    if kind not in KINDS:
        raise UsageError(f"unknown fault {kind!r} in {text!r}; allowed: {', '.join(sorted(KINDS))}")
    required, optional = KINDS[kind]
    given = dict(_pair(text, item) for item in rest.split(",") if item)
    allowed = (*required, *optional, *_COMMON)
    for key in given:
        if key not in allowed:
            raise UsageError(f"unknown key {key!r} in fault {text!r}; allowed: {', '.join(allowed)}")
    for key in required:
        if key not in given:
            raise UsageError(f"fault {text!r} lacks {key}=")
    node = given.pop("node", "")
    numbers = {**optional, **{k: _number(text, k, v) for k, v in given.items()}}
    since, until = int(numbers.pop("since", 0)), int(numbers.pop("until", FOREVER))
    return FleetFault(kind=kind, since=since, until=until, numbers=numbers, node=node)


def _pair(text: str, item: str) -> tuple[str, str]:
    key, equals, value = item.partition("=")
    if not equals:
        raise UsageError(f"{item!r} in fault {text!r}: not key=value")
    return key, value


def _number(text: str, key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError as error:
        raise UsageError(f"{key}={value} in fault {text!r}: not a number") from error
    if not math.isfinite(number):
        raise UsageError(f"{key}={value} in fault {text!r}: allowed: a finite number")
    if key in _WHOLE and (number < 0 or number != int(number)):
        raise UsageError(f"{key}={value} in fault {text!r}: allowed: a whole number, 0 or more")
    return number


@dataclass(frozen=True, kw_only=True)
class FleetSpec:
    """A job of `ranks` = tp x pp x dp ranks. Durations are seconds on a quiet machine."""

    ranks: int
    tp: int = 1
    pp: int = 1
    steps: int = 100
    first_step: int = 0
    seed: int = 0
    job: str = "simulated"
    attempt: int = 0
    microbatches: int = 4
    ranks_per_node: int = 8
    nodes_per_switch: int = 16
    forward_s: float = 0.05
    """one microbatch's forward on one stage, whose backward takes twice as long"""
    optimizer_s: float = 0.04
    data_s: float = 0.005
    tp_s: float = 0.004
    """one tensor-parallel collective, of which a forward has one and a backward two"""
    p2p_s: float = 0.002
    dp_s: float = 0.05
    """the gradient all-reduce"""
    norm_s: float = 0.0
    """an all-reduce of a few bytes over all ranks after it, as for the gradients' norm. 0: there is none"""
    noise: float = 0.01
    """standard deviation of compute times, relative"""
    checkpoint_every: int = 0
    tokens: int = 8192
    """tokens of one rank in one step"""
    start_ns: int = 1_760_000_000_000_000_000
    faults: tuple[FleetFault, ...] = ()
    nodes: tuple[str, ...] = ()
    """names of the nodes by node rank. Empty: sim-00000 and so on"""

    def __post_init__(self) -> None:
        for name in ("ranks", "tp", "pp", "microbatches", "ranks_per_node", "nodes_per_switch"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name.replace('_', '-')} = {getattr(self, name)}: allowed 1 or more")
        if self.seed < 0:
            raise UsageError(f"--seed = {self.seed}: allowed 0 or more")
        if self.steps < 0:
            raise UsageError(f"--steps = {self.steps}: allowed 0 or more")
        if self.ranks % (self.tp * self.pp):
            raise UsageError(f"--ranks = {self.ranks}: not a multiple of tp x pp = {self.tp * self.pp}")
        for fault in self.faults:
            if (stage := int(fault.numbers.get("stage", 0))) >= self.pp:
                raise UsageError(f"stage={stage} of a fault: allowed: below {self.pp}, as many as --pp")
            if fault.rank() >= self.ranks:
                raise UsageError(
                    f"fault {fault.kind}: rank {fault.rank()} is not below --ranks = {self.ranks}"
                )

    @property
    def dp(self) -> int:
        return self.ranks // (self.tp * self.pp)

    def node(self, rank: int) -> str:
        """Name of the node of a rank."""
        index = rank // self.ranks_per_node
        return self.nodes[index] if self.nodes else node_name(index)

    def dp_peers(self, rank: int) -> range:
        """The data-parallel group of a rank, the rank included."""
        first = rank // (self.tp * self.dp) * self.tp * self.dp + rank % self.tp
        return range(first, first + self.tp * self.dp, self.tp)


def node_name(index: int) -> str:
    """Name of a simulated node."""
    return f"sim-{index:05d}"


def starting(spec: FleetSpec, start: datetime | None) -> FleetSpec:
    """The spec with its first step at `start` (UTC). Without `start`, its last step ends about now."""
    if start is not None:
        return replace(spec, start_ns=int(start.replace(tzinfo=UTC).timestamp() * 1e9))
    passes = 3 * (spec.microbatches + spec.pp - 1) * spec.forward_s
    length_s = spec.data_s + passes + spec.dp_s + spec.optimizer_s
    return replace(spec, start_ns=time.time_ns() - int(1.1 * spec.steps * length_s * 1e9))
