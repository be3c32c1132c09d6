"""Which exit was the cause and which were its consequences, from exit status, order and last lines."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from pulsetrain.analytics.verdict import Finding, Healthy, SubjectType, Verdict
from pulsetrain.protocol.exits import exit_text, last_error
from pulsetrain.protocol.messages import RankExit

# Signals that a process causes itself, or that the kernel sends.
_OWN_SIGNALS = frozenset({"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGKILL", "SIGSYS", "SIGXCPU"})
_TEARDOWN_SIGNALS = frozenset({"SIGTERM", "SIGINT", "SIGHUP", "SIGPIPE"})  # sent to end a job
_TOGETHER_NS = 2_000_000_000  # exits that lie closer together may share a cause
_NOT_ENDED = 0.7  # confidence that the one rank that did not fail is the one that all others waited for
END_CHARS = 1000  # of each end of a line are searched
_MAX_EXITS = 16  # exits listed in the evidence
_NONE_LEFT = (
    "Replace all nodes of the job: none is left whose memory holds a copy of its state. It resumes from the "
    "newest checkpoint in storage, or from its beginning if there is none."
)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """The attempt that ended: its number of ranks `size`, and the node of each rank.

    `nodes` are all nodes of the attempt, empty where they are not known. `waiting` are ranks whose last
    report shows them in a collective.
    """

    job: str
    attempt: int
    now_ns: int
    size: int
    node_of: Callable[[int], str]
    nodes: frozenset[str] = frozenset()
    waiting: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True)
class CascadeRule:
    """One rule for a line that a rank prints when it ends because a peer ended."""

    name: str
    pattern: re.Pattern[str]


@cache
def cascade_rules() -> tuple[CascadeRule, ...]:
    """Return the rules of tables/cascade.toml."""
    text = files("pulsetrain.analytics").joinpath("tables/cascade.toml").read_text()
    return tuple(
        CascadeRule(name=r["name"], pattern=re.compile(r["pattern"], re.IGNORECASE))
        for r in tomllib.loads(text)["rule"]
    )


def searched(line: str) -> str:
    """What is searched of a line: both ends of a long one. Patterns may take the square of its length.

    >>> len(searched("x" * 16_000))
    2005
    """
    return line if len(line) <= 2 * END_CHARS else f"{line[:END_CHARS]} ... {line[-END_CHARS:]}"


def cascade_rule(lines: Iterable[str]) -> str:
    """Return the name of the first rule that a line matches, empty where the lines do not blame a peer."""
    text = "\n".join(map(searched, lines))
    return next((rule.name for rule in cascade_rules() if rule.pattern.search(text)), "")


def timed_out(lines: Iterable[str]) -> bool:
    """Whether the lines say that torch's own timeout has ended the rank."""
    rule = next(rule for rule in cascade_rules() if rule.name == "collective_timeout")
    return bool(rule.pattern.search("\n".join(map(searched, lines))))


def suspicion(exit_: RankExit) -> int:
    """Return how likely an exit is a cause: 3 own signal, 2 own error, 1 ended by others, 0 blames a peer."""
    if cascade_rule(exit_.last_lines):
        return 0
    name = exit_text(exit_.code)
    if name in _OWN_SIGNALS:
        return 3
    return 1 if name in _TEARDOWN_SIGNALS else 2


def explain(attempt: Attempt, exits: Sequence[RankExit], lost_nodes: Sequence[str]) -> list[Verdict]:
    """Return findings of kinds `crash` and `node_lost`. Exits with status 0 are no crash.

    Where a node is lost, exits elsewhere are its consequences, unless a rank ended by a signal of its own.
    Where all ranks of a node ended by one signal together, the node is named instead of them. Where no node
    is left, the advice names storage instead of a peer's memory.

    >>> attempt = Attempt(job="j", attempt=0, now_ns=9, size=2, node_of=lambda rank: f"n{rank}")
    >>> killed = RankExit(node="n1", ts_ns=5, job="j", attempt=0, rank=1, pid=7, code=-9, last_lines=())
    >>> [(f.kind, f.subject) for f in explain(attempt, [killed], [])]
    [('crash', '1')]
    """
    failed = sorted(
        (e for e in exits if e.attempt == attempt.attempt and e.code != 0), key=lambda e: (e.ts_ns, e.rank)
    )
    none_left = bool(attempt.nodes) and attempt.nodes <= set(lost_nodes)
    verdicts: list[Verdict] = [
        _lost_node(attempt, node, [e.rank for e in failed if e.node != node], none_left=none_left)
        for node in lost_nodes
    ]
    candidates = [e for e in failed if e.node not in lost_nodes and (not lost_nodes or suspicion(e) == 3)]
    if candidates and not (lost_nodes and candidates[0].ts_ns > failed[0].ts_ns + _TOGETHER_NS):
        verdicts.append(_crash(attempt, candidates, failed))
    return verdicts or [Healthy(analyzer="crash", numbers={"exits": len(exits)})]


def _lost_node(attempt: Attempt, node: str, victims: list[int], *, none_left: bool) -> Finding:
    advice = {"suggested_action": _NONE_LEFT} if none_left else {}
    return Finding(
        ts_ns=attempt.now_ns,
        job=attempt.job,
        attempt=attempt.attempt,
        kind="node_lost",
        subject_type="node",
        subject=node,
        severity="critical",
        confidence=0.97,
        summary=f"Node {node} is lost: its agent is gone.",
        evidence={"query": "watch.crash", "victims": victims, **advice},
    )


def _crash(attempt: Attempt, candidates: Sequence[RankExit], failed: Sequence[RankExit]) -> Finding:
    """Return the finding on the cause: a rank, a node whose ranks ended together, or the job."""
    highest = max(suspicion(e) for e in candidates)
    waited_for = _waited_for(attempt, failed) if highest == 0 else None
    if waited_for is not None:
        return _not_ended(attempt, waited_for, failed)
    causes = [e for e in candidates if suspicion(e) == highest]
    first = causes[0]
    near = [e for e in causes if e.ts_ns - first.ts_ns <= _TOGETHER_NS]
    subject_type, subject, culprits = _subject(attempt, first, near)
    line = last_error(first.last_lines, first.code)
    where = f" on {first.node}" if first.node and subject_type == "rank" else ""
    who = f"{subject_type.capitalize()} {subject}{where} ended first"
    if subject_type == "job":
        who = f"All {attempt.size} ranks ended alike"
    peer = " because of a peer" if highest == 0 else ""
    summary = f"{who}{peer} ({exit_text(first.code)})"
    return Finding(
        ts_ns=first.ts_ns,
        job=attempt.job,
        attempt=attempt.attempt,
        kind="crash",
        subject_type=subject_type,
        subject=subject,
        severity="critical",
        confidence=_confidence(highest, near, culprits),
        summary=summary + (f": {line}" if line else "."),
        evidence={
            "query": "watch.crash",
            "exit": exit_text(first.code),
            "code": first.code,
            "culprits": sorted(e.rank for e in culprits),
            "victims": sorted({e.rank for e in failed} - {e.rank for e in culprits}),
            "nodes": sorted({e.node for e in culprits if e.node}),
            "last_lines": list(first.last_lines[-10:]),
            "exits": _exit_table(failed),
            "all_timed_out": highest == 0 and timed_out(first.last_lines),
        },
    )


def _waited_for(attempt: Attempt, failed: Sequence[RankExit]) -> int | None:
    """Return the one rank that all others, which have failed, can have waited for.

    One exit alone proves nothing about the other rank. One that waits in a collective itself is next to fail.
    """
    left = set(range(attempt.size)) - {e.rank for e in failed}
    if len(left) != 1 or len(failed) < 2 or left & attempt.waiting:
        return None
    return left.pop()


def _not_ended(attempt: Attempt, rank: int, failed: Sequence[RankExit]) -> Finding:
    """Return the finding on a rank that did not fail, where all others say that they waited for a peer."""
    node = attempt.node_of(rank)
    where = f" on {node}" if node else ""
    return Finding(
        ts_ns=failed[0].ts_ns,
        job=attempt.job,
        attempt=attempt.attempt,
        kind="crash",
        subject_type="rank",
        subject=str(rank),
        severity="critical",
        confidence=_NOT_ENDED,
        summary=f"All other ranks failed because they waited for a peer. Rank {rank}{where} did not fail.",
        evidence={
            "query": "watch.crash",
            "exit": "",
            "code": 0,
            "culprits": [rank],
            "victims": sorted({e.rank for e in failed}),
            "nodes": [node] if node else [],
            "last_lines": [],
            "exits": _exit_table(failed),
            "all_timed_out": timed_out(failed[0].last_lines),
            "suggested_action": "See what this rank did last, and the hang that was named.",
        },
    )


def _subject(
    attempt: Attempt, first: RankExit, near: Sequence[RankExit]
) -> tuple[SubjectType, str, Sequence[RankExit]]:
    """Return what the finding names, and its exits: the job or a node where all its ranks ended alike."""
    alike = [e for e in near if (e.code, _error_type(e)) == (first.code, _error_type(first))]
    if attempt.size > 1 and len(alike) == attempt.size and suspicion(first) == 2:
        return "job", first.job, alike
    node_ranks = {r for r in range(attempt.size) if attempt.node_of(r) == first.node} if first.node else set()
    together = [e for e in alike if e.rank in node_ranks]
    own = first.code < 0 and suspicion(first) > 0
    if len(node_ranks) > 1 and {e.rank for e in together} == node_ranks and own:
        return "node", first.node, together
    return "rank", str(first.rank), [first]


def _error_type(exit_: RankExit) -> str:
    return last_error(exit_.last_lines, exit_.code).split(":", 1)[0]


def _confidence(highest: int, near: Sequence[RankExit], culprits: Sequence[RankExit]) -> float:
    """Return a confidence that falls with the number of other exits that look like causes too."""
    base: Mapping[int, float] = {3: 0.97, 2: 0.92, 1: 0.6, 0: 0.5}
    others = len(near) - len(culprits)
    return round(base[highest] / (1 + 0.5 * others), 3)


def _exit_table(failed: Sequence[RankExit]) -> list[dict[str, object]]:
    """Return the first exits in order, with how each was read. `alike` counts the rest by exit."""
    rows: list[dict[str, object]] = [
        {
            "rank": e.rank,
            "node": e.node,
            "ts_ns": e.ts_ns,
            "exit": exit_text(e.code),
            "blames_peer": cascade_rule(e.last_lines),
        }
        for e in failed[:_MAX_EXITS]
    ]
    rest = Counter(exit_text(e.code) for e in failed[_MAX_EXITS:])
    return rows + [{"exit": name, "alike": count} for name, count in rest.items()]
