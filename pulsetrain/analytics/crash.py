"""Which exit was the fault and which were its consequences: exit status, order and last lines."""

from __future__ import annotations

import re
import signal
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, SubjectType, Verdict
from pulsetrain.protocol.messages import RankExit

# Signals by which a process dies of itself or of the kernel; who tears a job down sends the others.
_OWN_SIGNALS = frozenset({"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGKILL", "SIGSYS", "SIGXCPU"})
_TEARDOWN = frozenset({"SIGTERM", "SIGINT", "SIGHUP", "SIGPIPE"})
_TOGETHER_NS = 2_000_000_000  # exits this close share a cause where the rest fits


@dataclass(frozen=True, kw_only=True)
class Cascade:
    """One rule for a line that a rank leaves when it dies of a peer's death."""

    name: str
    pattern: re.Pattern[str]


@cache
def cascade_rules() -> tuple[Cascade, ...]:
    """The rules of tables/cascade.toml."""
    text = files("pulsetrain.analytics").joinpath("tables/cascade.toml").read_text()
    return tuple(
        Cascade(name=r["name"], pattern=re.compile(r["pattern"], re.IGNORECASE))
        for r in tomllib.loads(text)["rule"]
    )


def cascade_rule(lines: Iterable[str]) -> str:
    """Name of the first rule that one of the lines matches; empty: the lines do not blame a peer."""
    text = "\n".join(lines)
    return next((rule.name for rule in cascade_rules() if rule.pattern.search(text)), "")


def how(code: int) -> str:
    """An exit code in words: minus a signal's number, or a status.

    >>> how(-9), how(1)
    ('SIGKILL', 'exit status 1')
    """
    if code >= 0:
        return f"exit status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def last_error(lines: Sequence[str]) -> str:
    """The last line that reads like an exception, else the last that is not empty."""
    filled = [line.strip() for line in lines if line.strip()]
    errors = [line for line in filled if re.match(r"(\w+\.)*\w*(Error|Exception|Interrupt|Exit)\b", line)]
    return (errors or filled or [""])[-1][:300]


def suspicion(exit_: RankExit) -> int:
    """How likely an exit is a cause by itself: 3 own signal, 2 own error, 1 torn down, 0 says a peer died."""
    if cascade_rule(exit_.last_lines):
        return 0
    name = how(exit_.code)
    if name in _OWN_SIGNALS:
        return 3
    return 1 if name in _TEARDOWN else 2


def explain(
    *,
    job: str,
    attempt: int,
    now_ns: int,
    exits: Sequence[RankExit],
    lost_nodes: Sequence[str],
    node_of: Callable[[int], str],
    size: int,
) -> list[Verdict]:
    """Findings of kinds `crash` and `node_lost` for one attempt; exits with status 0 are no crash.

    `size` is the number of ranks. Where a node is lost, exits elsewhere are its consequences unless a rank
    died of a signal of its own. A node whose ranks died of one signal together is named instead of them.
    """
    failed = sorted(
        (e for e in exits if e.attempt == attempt and e.code != 0), key=lambda e: (e.ts_ns, e.rank)
    )
    found: list[Verdict] = [
        _lost(job, attempt, now_ns, node, [e.rank for e in failed if e.node != node]) for node in lost_nodes
    ]
    roots = [e for e in failed if e.node not in lost_nodes and (not lost_nodes or suspicion(e) == 3)]
    if roots and not (lost_nodes and roots[0].ts_ns > failed[0].ts_ns + _TOGETHER_NS):
        found.append(_crash(job, attempt, roots, failed, node_of, size))
    if found:
        return found
    if failed:
        return [Inconclusive(analyzer="crash", reason="only ranks of lost nodes ended")]
    return [Healthy(analyzer="crash", numbers={"exits": len(exits)})]


def _lost(job: str, attempt: int, now_ns: int, node: str, victims: list[int]) -> Finding:
    return Finding(
        ts_ns=now_ns,
        job=job,
        attempt=attempt,
        kind="node_lost",
        subject_type="node",
        subject=node,
        severity="critical",
        confidence=0.97,
        summary=f"Node {node} is lost: its agent is gone.",
        evidence={"query": "watch.crash", "victims": victims},
    )


def _crash(
    job: str,
    attempt: int,
    roots: Sequence[RankExit],
    failed: Sequence[RankExit],
    node_of: Callable[[int], str],
    size: int,
) -> Finding:
    """The finding on the root: a rank, a node whose ranks went together, or the job where all fail alike."""
    best = max(suspicion(e) for e in roots)
    causes = [e for e in roots if suspicion(e) == best]
    first = causes[0]
    near = [e for e in causes if e.ts_ns - first.ts_ns <= _TOGETHER_NS]
    kind, subject, guilty = _subject(first, near, node_of, size)
    victims = sorted({e.rank for e in failed} - {e.rank for e in guilty})
    line = last_error(first.last_lines)
    where = f" on {first.node}" if first.node and kind == "rank" else ""
    return Finding(
        ts_ns=first.ts_ns,
        job=job,
        attempt=attempt,
        kind="crash",
        subject_type=kind,
        subject=subject,
        severity="critical",
        confidence=_confidence(best, near, guilty),
        summary=f"{kind.capitalize()} {subject}{where} ended first ({how(first.code)})"
        + (f": {line}" if line else "."),
        evidence={
            "query": "watch.crash",
            "exit": how(first.code),
            "code": first.code,
            "culprits": sorted(e.rank for e in guilty),
            "victims": victims,
            "nodes": sorted({e.node for e in guilty if e.node}),
            "last_lines": list(first.last_lines[-10:]),
            "exits": _exit_table(failed),
        },
    )


def _subject(
    first: RankExit, near: Sequence[RankExit], node_of: Callable[[int], str], size: int
) -> tuple[SubjectType, str, Sequence[RankExit]]:
    alike = [e for e in near if (e.code, _error_type(e)) == (first.code, _error_type(first))]
    if size > 1 and len(alike) == size and suspicion(first) == 2:
        return "job", first.job, alike
    mates = {r for r in range(size) if node_of(r) == first.node} if first.node else set()
    together = [e for e in alike if e.rank in mates]
    if len(mates) > 1 and {e.rank for e in together} == mates and first.code < 0:
        return "node", first.node, together
    return "rank", str(first.rank), [first]


def _error_type(exit_: RankExit) -> str:
    return last_error(exit_.last_lines).split(":", 1)[0]


def _confidence(best: int, near: Sequence[RankExit], guilty: Sequence[RankExit]) -> float:
    """Falls with the number of other exits that look like causes too, and where all blame a peer."""
    base: Mapping[int, float] = {3: 0.97, 2: 0.92, 1: 0.6, 0: 0.5}
    rivals = len(near) - len(guilty)
    return round(base[best] / (1 + 0.5 * rivals), 3)


def _exit_table(failed: Sequence[RankExit]) -> list[dict[str, object]]:
    """The first exits, in order, with how each was read; `alike` counts the rest by exit."""
    rows: list[dict[str, object]] = [
        {
            "rank": e.rank,
            "node": e.node,
            "ts_ns": e.ts_ns,
            "exit": how(e.code),
            "blames_peer": cascade_rule(e.last_lines),
        }
        for e in failed[:16]
    ]
    rest = Counter(how(e.code) for e in failed[16:])
    return rows + [{"exit": name, "alike": count} for name, count in rest.items()]
