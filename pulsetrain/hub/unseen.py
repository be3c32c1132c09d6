"""What a healthy job's summary must not claim: questions that nobody answers at present. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pulsetrain.analytics.verdict import Failed, Inconclusive, Verdict
from pulsetrain.hub.loops import LoopRow

LIVE_WATCH, STORE_ANALYSIS = "live watch", "store analysis"
MOST_NAMED = 3
_QUESTIONS = {LIVE_WATCH: "whether it hangs", STORE_ANALYSIS: "whether a rank or machine is slow or broken"}
_BOTH = ("hang", "straggler")


def unseen(verdicts: Sequence[Verdict], loops: Iterable[LoopRow] = ()) -> str:
    """Return what is not seen of a job, "" for nothing worth telling. `loops` are the hub's own, and others.

    A detector that is blind is usual: a job without spans has no stragglers that could be named. Only where
    those for a hang and for a slow rank are blind together nothing vouches for the job.

    >>> unseen([Failed(analyzer="mfu", error="no answer")])
    'mfu failed (no answer)'
    >>> both = [Inconclusive(analyzer=name, reason="no report", blind=True) for name in ("hang", "straggler")]
    >>> unseen(both)
    'whether it hangs or a rank is slow (no report)'
    >>> unseen([Inconclusive(analyzer="straggler", reason="no spans", blind=True)])
    ''
    """
    stuck = {row["loop"] for row in loops if row["process"] == "hub" and row["stale"]}
    said = [what for loop, what in _QUESTIONS.items() if loop in stuck]
    blind = {v.analyzer: v.reason for v in verdicts if isinstance(v, Inconclusive) and v.blind}
    if blind.keys() >= {*_BOTH}:
        said.append(
            f"whether it hangs or a rank is slow ({'; '.join(dict.fromkeys(blind[n] for n in _BOTH))})"
        )
    failed = [f"{v.analyzer} failed ({v.error})" for v in verdicts if isinstance(v, Failed)]
    more = len(failed) - MOST_NAMED
    said += failed[:MOST_NAMED] + ([f"{more} more failed"] if more > 0 else [])
    return "; ".join(said)
