"""Compares the injected faults with the findings: the demo's report and its tables. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypedDict

from pulsetrain.core.json import JsonObject

Subject = tuple[str, str]

STAGES = ("detect", "diagnose", "evict", "rendezvous", "load", "first_step")


@dataclass(frozen=True, kw_only=True)
class Injection:
    """One fault that was injected. Times are UTC nanoseconds, `step` is the job's at that moment.

    `accepted` are the subjects of findings that name it. `kinds` are the kinds of finding for such a fault.
    """

    kind: str
    injected: str
    kinds: frozenset[str]
    accepted: frozenset[Subject]
    at_ns: int
    step: int
    attempt: int


@dataclass(frozen=True, kw_only=True)
class SeenFinding:
    """A finding, and when an outside reader of the hub first saw it."""

    kind: str
    subject: Subject
    summary: str
    seen_ns: int
    step: int


class OutcomeRow(TypedDict):
    """One fault of the demo's report."""

    kind: str
    injected: str
    named: str
    correct: bool
    detected_s: float | None
    resumed_s: float | None
    lost_steps: int | None


class Report(TypedDict):
    """The demo's report."""

    faults: list[OutcomeRow]
    params_hash: str
    reference_hash: str
    identical: bool
    steps: int
    wall_s: float
    overhead_ratio: float | None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of one injection. None: it did not happen. A job that never stopped resumed after 0 s."""

    injection: Injection
    named: tuple[str, ...]
    correct: bool
    detected_s: float | None
    detected_steps: int | None
    resumed_s: float | None
    lost_steps: int | None

    def row(self) -> OutcomeRow:
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
    findings: Iterable[SeenFinding],
    *,
    until_ns: int,
    resumed_ns: int | None,
    lost_steps: int | None,
) -> Outcome:
    """Compare an injection with the findings first seen between it and `until_ns`.

    It is correct when the findings of its kinds name an accepted subject and no other. `resumed_ns` is
    `at_ns` for a fault that did not stop the job, None where the job never went on.
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
    """Who was named. A rank of the faulty node counts for the node, and is shown with it."""
    name = subject_name(subject)
    part_of_injected = subject in injection.accepted and name != injection.injected
    return f"{injection.injected} ({name})" if part_of_injected else name


def _accuses(finding: SeenFinding, kinds: frozenset[str]) -> bool:
    """Whether it is of such a kind and names a node or rank. "The whole job became slower" names nobody."""
    return finding.kind in kinds and finding.subject[0] in ("node", "rank")


def subject_name(subject: Subject) -> str:
    """A subject for people: a node by its name, anything else with its type."""
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
) -> Report:
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


def passed(report_: Report, expected_faults: int) -> bool:
    """Whether every fault was injected and named, and the parameters equal those of the reference run."""
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


def stage_table(recoveries: Iterable[JsonObject]) -> list[str]:
    """The time of each stage of each recovery, in seconds. `recoveries` are details of events."""
    rows: list[tuple[str, ...]] = [("recovery from", *STAGES, "in all")]
    for recovery in recoveries:
        stages = recovery.get("stages_ns", {})
        times = [stages.get(stage, 0) / 1e9 for stage in STAGES]
        cause = f"{recovery.get('cause', '?')} of {recovery.get('culprit', '?')}"
        rows.append((cause, *(f"{t:.2f} s" for t in times), f"{sum(times):.2f} s"))
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines, with one width for each column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def rounded(value: float | None) -> float | None:
    """Seconds rounded to milliseconds."""
    return None if value is None else round(value, 3)
