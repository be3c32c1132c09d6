"""What was done beside what was said about it: the demo's report and its tables. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Subject = tuple[str, str]

STAGES = ("detect", "diagnose", "evict", "rendezvous", "load", "first_step")


@dataclass(frozen=True, kw_only=True)
class Injection:
    """One fault that was really done. Times are UTC nanoseconds, `step` is the job's at that moment.

    `accepted` are the subjects that name it; `kinds` the kinds of finding that speak of such a fault.
    """

    kind: str
    injected: str
    kinds: frozenset[str]
    accepted: frozenset[Subject]
    at_ns: int
    step: int
    attempt: int


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A finding, and when an outside reader of the hub first saw it."""

    kind: str
    subject: Subject
    summary: str
    seen_ns: int
    step: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one injection. None: it did not happen. A job that never stopped resumed after 0 s."""

    injection: Injection
    named: tuple[str, ...]
    correct: bool
    detected_s: float | None
    detected_steps: int | None
    resumed_s: float | None
    lost_steps: int | None

    def row(self) -> dict[str, Any]:
        """The report's object for this fault."""
        return {
            "kind": self.injection.kind,
            "injected": self.injection.injected,
            "named": ", ".join(self.named),
            "correct": self.correct,
            "detected_s": rounded(self.detected_s),
            "resumed_s": rounded(self.resumed_s),
            "lost_steps": self.lost_steps,
        }


def judge(
    injection: Injection,
    findings: Iterable[Seen],
    *,
    until_ns: int,
    resumed_ns: int | None,
    lost_steps: int | None,
) -> Outcome:
    """Compare an injection with what was first seen between it and `until_ns`.

    Correct is an accepted subject and no other among the findings of its kinds. `resumed_ns` is `at_ns` for a
    fault that did not stop the job, None where it never went on.
    """
    about = sorted(
        (f for f in findings if _accuses(f, injection.kinds) and injection.at_ns <= f.seen_ns <= until_ns),
        key=lambda f: f.seen_ns,
    )
    right = [f for f in about if f.subject in injection.accepted]
    first = right[0] if right else None
    return Outcome(
        injection=injection,
        named=tuple(dict.fromkeys(_named(f.subject, injection) for f in about)),
        correct=bool(about) and len(right) == len(about),
        detected_s=(first.seen_ns - injection.at_ns) / 1e9 if first else None,
        detected_steps=max(0, first.step - injection.step) if first else None,
        resumed_s=None if resumed_ns is None else (resumed_ns - injection.at_ns) / 1e9,
        lost_steps=lost_steps,
    )


def _named(subject: Subject, injection: Injection) -> str:
    """Who was named; a rank of the node that was struck counts for the node, and is told with it."""
    said = spoken(subject)
    stands_for = subject in injection.accepted and said != injection.injected
    return f"{injection.injected} ({said})" if stands_for else said


def _accuses(finding: Seen, kinds: frozenset[str]) -> bool:
    """Whether it is of such a kind and says who; "the whole job became slower" accuses nobody."""
    return finding.kind in kinds and finding.subject[0] in ("node", "rank")


def spoken(subject: Subject) -> str:
    """A subject as people say it: a node by its name, anything else with its type."""
    kind, name = subject
    return name if kind == "node" else f"{kind} {name}"


def report(
    outcomes: Sequence[Outcome],
    *,
    params_hash: str,
    reference_hash: str,
    steps: int,
    wall_s: float,
    overhead_ratio: float | None,
) -> dict[str, Any]:
    """The demo's report. `overhead_ratio`: median undisturbed step over the reference's; None: unknown."""
    return {
        "faults": [o.row() for o in outcomes],
        "params_hash": params_hash,
        "reference_hash": reference_hash,
        "identical": bool(params_hash) and params_hash == reference_hash,
        "steps": steps,
        "wall_s": round(wall_s, 2),
        "overhead_ratio": rounded(overhead_ratio),
    }


def passed(report_: Mapping[str, Any], expected_faults: int) -> bool:
    """Every fault happened and was named, and the parameters are those of the uninterrupted run."""
    faults = report_["faults"]
    return bool(report_["identical"]) and len(faults) == expected_faults and all(f["correct"] for f in faults)


def fault_table(outcomes: Iterable[Outcome]) -> list[str]:
    """The faults as aligned lines, header first."""
    rows = [("fault", "injected", "named", "detected after", "resumed after", "steps lost")]
    for outcome in outcomes:
        row = outcome.row()
        steps = outcome.detected_steps
        detected = "not" if row["detected_s"] is None else f"{row['detected_s']:.1f} s, {steps} steps"
        resumed = "not" if row["resumed_s"] is None else f"{row['resumed_s']:.1f} s"
        rows.append(
            (
                row["kind"].replace("_", " "),
                row["injected"],
                (row["named"] or "nobody") + ("" if row["correct"] else "  WRONG"),
                detected,
                "did not stop" if outcome.resumed_s == 0 else resumed,
                "?" if row["lost_steps"] is None else str(row["lost_steps"]),
            )
        )
    return aligned(rows)


def stage_table(recoveries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Stage by stage where the time of each recovery went, in seconds; `recoveries` are details of events."""
    rows: list[tuple[str, ...]] = [("recovery from", *STAGES, "in all")]
    for recovery in recoveries:
        stages = recovery.get("stages_ns", {})
        times = [stages.get(stage, 0) / 1e9 for stage in STAGES]
        cause = f"{recovery.get('cause', '?')} of {recovery.get('culprit', '?')}"
        rows.append((cause, *(f"{t:.2f} s" for t in times), f"{sum(times):.2f} s"))
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines of one width a column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def rounded(value: float | None) -> float | None:
    """Milliseconds are enough for a report."""
    return None if value is None else round(value, 3)
