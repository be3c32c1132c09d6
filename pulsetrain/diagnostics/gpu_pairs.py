"""What an all-to-all among the GPUs of a machine says of each GPU and each pair. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pulsetrain.diagnostics.measurement import Check, used_by_others

LEAST_GPUS = 4
"""that are needed to know what is usual: two of three may be joined by a bridge"""
SLOW_SHARE = 0.5
"""of what is usual among the GPUs of the machine (`usual`). Each shows its own rate with its best partner"""

Answer = Mapping[str, object]
"""The fields of an `all_to_all.ExchangeReport`; only `ok` and `error` if the member did not answer."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The rate from one GPU to another, by UUID."""

    sender: str
    receiver: str
    bytes_per_s: float


def pairs(answers: Sequence[Answer]) -> list[Pair]:
    """Every pair of GPUs that was measured. None where the members were on processors."""
    gpus = [str(answer.get("gpu", "")) for answer in answers]
    found = []
    for receiver, answer in zip(gpus, answers, strict=True):
        rates = answer.get("rates", {})
        for sender, rate in rates.items() if receiver and isinstance(rates, Mapping) else ():
            if gpus[int(sender)]:
                found.append(Pair(sender=gpus[int(sender)], receiver=receiver, bytes_per_s=float(rate)))
    return found


def checks(answers: Sequence[Answer]) -> list[Check]:
    """One check for all members together, and one for each GPU, in their order.

    Where a member's GPU had no free memory, the others waited for it in vain, and nothing was measured.
    """
    errors = [f"{_name(i, a)}: {a.get('error')}" for i, a in enumerate(answers) if not a["ok"]]
    busy = [error for error in errors if used_by_others(error)]
    busbw = [float(str(a.get("busbw_bytes_per_s", 0.0))) for a in answers]
    backend = str(answers[0].get("backend", "")) if answers else ""
    members = "GPUs" if backend == "nccl" else "processes"
    together = Check(
        name="all_to_all",
        value=min(busbw, default=0.0),
        unit="B/s",
        right=not errors or bool(busy),
        busy=bool(busy),
        detail="; ".join(f"not measurable: {error}" for error in busy)
        or "; ".join(errors)
        or f"{backend}, {len(answers)} {members}",
    )
    gpus = [str(answer.get("gpu", "")) for answer in answers]
    measured = pairs(answers)
    return [together, *(_check(i, gpu, measured) for i, gpu in enumerate(gpus) if gpu and measured)]


def own_rates(measured: Sequence[Pair]) -> dict[str, float]:
    """What each GPU reaches with its best partner, in the slower of the two directions.

    >>> own_rates([Pair(sender="a", receiver="b", bytes_per_s=3.0), Pair(sender="b", receiver="a",
    ...     bytes_per_s=2.0)])
    {'a': 2.0, 'b': 2.0}
    """
    out: dict[str, float] = {}
    into: dict[str, float] = {}
    for pair in measured:
        out[pair.sender] = max(out.get(pair.sender, 0.0), pair.bytes_per_s)
        into[pair.receiver] = max(into.get(pair.receiver, 0.0), pair.bytes_per_s)
    return {gpu: min(out.get(gpu, 0.0), into.get(gpu, 0.0)) for gpu in sorted(out.keys() | into.keys())}


def usual(gpu: str, measured: Sequence[Pair]) -> float:
    """What most other GPUs reach with their second best partner, without this one. 0 where that is unknown.

    A bridge joins two GPUs, so with the second best partner each shows the kind of link that is common to
    all. A quarter of the others may be slow themselves.

    >>> usual("a", [Pair(sender=s, receiver=r, bytes_per_s=9.0 if {s, r} == {"c", "d"} else 2.0)
    ...     for s in "abcd" for r in "abcd" if s != r])
    2.0
    """
    out: dict[str, list[float]] = {}
    into: dict[str, list[float]] = {}
    for pair in measured:
        if gpu not in (pair.sender, pair.receiver):
            out.setdefault(pair.sender, []).append(pair.bytes_per_s)
            into.setdefault(pair.receiver, []).append(pair.bytes_per_s)
    both = ((out[other], into[other]) for other in out.keys() & into.keys())
    rates = sorted(min(map(_second, ways)) for ways in both if min(map(len, ways)) > 1)
    return rates[len(rates) // 4] if rates else 0.0


def _second(rates: Sequence[float]) -> float:
    return sorted(rates)[-2]


def _check(index: int, gpu: str, measured: Sequence[Pair]) -> Check:
    rates = own_rates(measured)
    slowest = min((p for p in measured if gpu in (p.sender, p.receiver)), key=lambda p: p.bytes_per_s)
    other = slowest.sender if slowest.receiver == gpu else slowest.receiver
    way = "from" if slowest.receiver == gpu else "to"
    return Check(
        name=f"gpu{index}_exchange",
        value=rates[gpu],
        unit="B/s",
        limit=SLOW_SHARE * usual(gpu, measured) if len(rates) >= LEAST_GPUS else None,
        detail=f"{gpu}; its slowest is {way} {other}: {slowest.bytes_per_s / 1e9:.1f} GB/s",
    )


def _name(index: int, answer: Answer) -> str:
    return str(answer.get("gpu") or f"member {index}")
