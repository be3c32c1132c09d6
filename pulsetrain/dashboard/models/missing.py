"""What is said of a rank or a node that a job does not have, and which ones it has."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pulsetrain.dashboard.models.text import fold, natural

_MOST_NAMED = 12


def missing_rank(rank: int, ranks: Collection[int]) -> str:
    """Say that a job with these `ranks` has no such rank. "" where it has, or where its ranks are not known.

    >>> missing_rank(99, range(8))
    'This job has no rank 99. It has ranks 0-7.'
    """
    if not ranks or rank in ranks:
        return ""
    has = "rank" if len(ranks) == 1 else "ranks"
    return f"This job has no rank {rank}. It has {has} {fold(ranks)}."


def missing_node(name: str, nodes: Iterable[str], others: Iterable[str] = ()) -> str:
    """Say that a job on these `nodes` has no such node, and which `others` have one. "" where it has.

    >>> missing_node("n9", ["n10", "n2"], ["gpt"])
    "n9 has not taken part in this job. It takes part in gpt. The job's nodes are n2, n10."
    """
    known = sorted(set(nodes), key=natural)
    if name in known:
        return ""
    elsewhere = ", ".join(sorted(set(others), key=natural))
    said = f"{name} has not taken part in this job."
    said += f" It takes part in {elsewhere}." if elsewhere else ""
    if not known:
        return said
    more = len(known) - _MOST_NAMED
    end = f" and {more:,} more" if more > 0 else ""
    its = "node is" if len(known) == 1 else "nodes are"
    its = f"The job's {its}" if elsewhere else f"Its {its}"
    return f"{said} {its} {', '.join(known[:_MOST_NAMED])}{end}."
