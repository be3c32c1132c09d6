"""What own time and the order of arrival say together about who is slow.

Own time is measured on each rank alone. The order of arrival is seen between ranks. They err in different
ways, so a rank that both name is surer, and one that own time names although it comes early is doubtful.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.slowness.arrivals import Arrival, Arrivals, LoadArrivals
from pulsetrain.analytics.slowness.cohort import oversubscribed
from pulsetrain.analytics.slowness.suspects import Suspect
from pulsetrain.analytics.slowness.timings import Timings

AGREES_RATIO = 0.5  # share of steps in which a slow rank comes last
EARLY_RATIO = 0.25  # of the time that it should lose, by which a slow rank that comes early is doubtful
LAST_RATIO = 0.8  # share of steps in which a rank comes last, from which the order alone says something
LATE_RATIO = 0.1  # of the step, by which it does
EXPLAINED_RATIO = 0.5  # of the lateness, from which another part of the step explains it

LOAD_RATIO = 0.5  # of a slowdown, by which a rank's share of routed tokens must exceed the others'
_LOAD = (
    "{} {} computes {:.0%} longer, and gets more of the tokens that experts exchange: uneven load explains it"
)
_ELSEWHERE = ("data", "gc")  # parts that have analyzers of their own
_TOLD = {"checkpoint": "checkpoints", "other": "evaluation and phases of its own"}  # parts that have none


@dataclass(frozen=True, kw_only=True)
class Weighed:
    """The suspects that stand, what the order of arrival says of each, and the reason to doubt the answer.

    `arrivals`: there was an order of arrival to hold them against.
    """

    suspects: list[tuple[Suspect, Arrival | None]]
    doubt: str = ""
    arrivals: bool = False


def agrees(arrival: Arrival | None) -> bool:
    """Whether the order of arrival names the suspect too."""
    return (
        arrival is not None and arrival.last_ratio >= AGREES_RATIO and arrival.lateness_ns > arrival.error_ns
    )


def weigh(timings: Timings, suspects: Sequence[Suspect], load: LoadArrivals) -> Weighed:
    """Hold the suspects of own time against the order of arrival.

    On an oversubscribed host it is chance who comes last, so own time decides alone and nothing is loaded.
    """
    busier = [s for s in suspects if _gets_more_tokens(timings, s)]
    doubt = "".join(_LOAD.format(s.subject_type, s.subject, s.ratio) for s in busier[:1])
    suspects = [s for s in suspects if all(s is not b for b in busier)]
    arrivals = None if timings.shares_devices or oversubscribed(timings) else load()
    if arrivals is None:
        return Weighed(suspects=[(s, None) for s in suspects], doubt=doubt)
    stand = []
    for suspect in suspects:
        arrival = arrivals.of(timings.ranks[suspect.columns].tolist())
        if arrival is not None and _comes_early(timings, suspect, arrival):
            doubt = (
                f"{suspect.subject_type} {suspect.subject} seems {suspect.ratio:.0%} slower by its own time, "
                f"but comes {-arrival.lateness_ns / 1e6:.1f} ms before the others to collectives"
            )
        else:
            stand.append((suspect, arrival))
    return Weighed(
        suspects=stand,
        doubt=doubt or ("" if suspects else late_without_reason(timings, arrivals)),
        arrivals=True,
    )


def late_without_reason(timings: Timings, arrivals: Arrivals | None) -> str:
    """Who comes last again and again although nothing measured explains it. Empty: nobody."""
    if timings.shares_devices:  # somebody has the last turn
        return ""
    latest = arrivals.latest() if arrivals is not None else None
    if latest is None or latest.last_ratio < LAST_RATIO:
        return ""
    rows = np.isin(timings.steps, arrivals.steps) if arrivals is not None else np.zeros(0, np.bool_)
    duration = timings.numbers["duration_ns"][rows]
    usual = float(np.nanmedian(duration)) if np.isfinite(duration).any() else 0.0
    column = np.flatnonzero(timings.ranks == latest.ranks[0])
    if not len(column) or latest.lateness_ns < max(latest.error_ns, LATE_RATIO * usual):
        return ""
    spent = {
        name: _beyond_others(timings.parts[name][rows], int(column[0])) for name in (*_ELSEWHERE, *_TOLD)
    }
    explains = [name for name, excess in spent.items() if excess >= EXPLAINED_RATIO * latest.lateness_ns]
    if set(explains) & set(_ELSEWHERE):
        return ""
    late = (
        f"rank {latest.ranks[0]} comes last to the collectives of {latest.last_ratio:.0%} of steps, by "
        f"{latest.lateness_ns / 1e6:.1f} ms"
    )
    if not explains:
        more = _computes_more(timings, rows, int(column[0]), EXPLAINED_RATIO * latest.lateness_ns)
        return f"{late}{more}" if more else f"{late}, and its own time does not explain it"
    part = max(explains, key=lambda name: spent[name])
    return f"{late}: it spends {spent[part] / 1e6:.1f} ms a step more than the others on {_TOLD[part]}"


def _computes_more(timings: Timings, rows: NDArray[np.bool_], column: int, least_ns: float) -> str:
    """How much longer a rank computes than the others, from `least_ns` a step on. "" for less.

    One that is slow beside ranks of the same work is named for that, so its work may be more.
    """
    beyond = _beyond_others(timings.parts["compute"][rows], column)
    if beyond < least_ns:
        return ""
    roles = timings.roles
    apart = len(roles) > 0 and (roles == roles[column]).sum() * 2 < len(roles)
    where = ", in process groups of other use" if apart else ""
    return f": it computes {beyond / 1e6:.1f} ms a step more than the others{where}"


def _beyond_others(part: NDArray[np.float64], column: int) -> float:
    """The mean time of a rank in a part [step, rank] beyond the median of the others, in ns."""
    known = np.nan_to_num(part)
    return float((known[:, column] - np.median(np.delete(known, column, axis=1), axis=1)).mean())


def _gets_more_tokens(timings: Timings, suspect: Suspect) -> bool:
    if suspect.cause or suspect.by_history:
        return False
    return load_explains(timings, suspect.columns, suspect.rows, suspect.ratio)


def load_explains(
    timings: Timings, columns: NDArray[np.int64], rows: NDArray[np.int64], ratio: float
) -> bool:
    """Whether experts on these ranks got so many more tokens than the others of their stages that it explains
    why they take longer by `ratio`."""
    if timings.routed_bytes is None:
        return False
    usual = np.nan_to_num(timings.routed_bytes[rows]).mean(axis=0)
    same = np.flatnonzero(np.isin(timings.classes, timings.classes[columns]))
    others = usual[np.setdiff1d(same, columns)]
    if not len(others) or not (others > 0).any():
        return False
    return bool(usual[columns].mean() > (1 + LOAD_RATIO * ratio) * np.median(others))


def _comes_early(timings: Timings, suspect: Suspect, arrival: Arrival) -> bool:
    compute = timings.parts["compute"][np.ix_(suspect.rows, suspect.columns)]
    known = compute[compute > 0]
    lost = float(np.median(known)) * (1 - np.exp(-suspect.excess)) if len(known) else 0.0
    return arrival.lateness_ns < -max(arrival.error_ns, EARLY_RATIO * lost)
