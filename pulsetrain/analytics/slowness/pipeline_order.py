"""The pipeline stage of each rank, from whom it first hears in a step.

A script that builds its process groups by itself names no mesh. Its transfers still show the pipeline: the
first stage begins a step by sending, and every other one by receiving from the stage before it. In a ring, as
of context parallelism, all ranks begin alike, so they are one stage.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping

import pyarrow as pa

LEAST_STEPS = 2
CHAIN = 3  # stages from which transfers show a pipeline: a rank that feeds all others has two
AGREED = 0.75  # share of a rank's steps that must begin alike
SENDS = -1
"""In place of a rank that is heard first: the step begins with a send."""


def heard_first(transfers: pa.Table) -> dict[int, int]:
    """Whom each rank hears first in its usual step, `SENDS` where it begins with a send.

    `transfers` is `analysis.first_transfers`. Ranks whose steps begin differently are left out.
    """
    begins: dict[int, Counter[int]] = defaultdict(Counter)
    for row in transfers.to_pylist():
        begins[row["rank"]][row["peer"] if row["phase"] == "recv" else SENDS] += 1
    usual = {rank: (counts.most_common(1)[0], counts.total()) for rank, counts in begins.items()}
    return {
        rank: first
        for rank, ((first, times), steps) in usual.items()
        if steps >= LEAST_STEPS and times >= AGREED * steps
    }


def stages(heard: Mapping[int, int], ranks: Collection[int]) -> dict[int, int] | None:
    """The stage of each of these ranks, counted from 0. None where it is not known of one of them.

    Ranks that hear each other in a circle begin together: they are the first stage.

    >>> stages({0: SENDS, 1: SENDS, 2: 0, 3: 1}, range(4))
    {0: 0, 1: 0, 2: 1, 3: 1}
    >>> stages({0: 1, 1: 0}, range(2))
    {0: 0, 1: 0}
    """
    found: dict[int, int] = {}
    for rank in sorted(ranks):
        path: list[int] = []
        while rank not in found and rank not in path and rank != SENDS:
            if rank not in heard:
                return None
            path.append(rank)
            rank = heard[rank]
        circle = path[path.index(rank) :] if rank in path else []
        found |= dict.fromkeys(circle, 0)
        stage = found.get(rank, SENDS)
        for behind in reversed(path[: len(path) - len(circle)]):
            stage += 1
            found[behind] = stage
    return {rank: found[rank] for rank in sorted(ranks)}


def is_chain(stage_of: Mapping[int, int]) -> bool:
    """Return whether stages that transfers show are a pipeline's: three or more, of as many ranks each.

    A rank that loads data for all others, or keeps their parameters, sends to them too.

    >>> is_chain({0: 0, 1: 1, 2: 2}), is_chain({0: 0, 1: 1, 2: 1}), is_chain({0: 0, 1: 1, 2: 2, 3: 2})
    (True, False, False)
    """
    sizes = Counter(stage_of.values())
    return len(sizes) >= CHAIN and len(set(sizes.values())) == 1
