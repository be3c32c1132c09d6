"""One line for each job: state, sentence, since when. And the evidence behind it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.models.states import job_state
from pulsetrain.dashboard.models.text import clock
from pulsetrain.dashboard.models.time_use import ettr_facts

STALE_AFTER_S = 10.0


@dataclass(frozen=True, kw_only=True)
class JobLine:
    """What the overview says about one job. `since_ns` is 0 where nobody knows."""

    job: str
    state: str
    sentence: str
    since_ns: int
    attempt: int
    step: int


def job_lines(live: Sequence[JsonObject], stored: Sequence[JsonObject]) -> list[JobLine]:
    """The jobs that the hub runs, then those that are only on record, which have no live state: "no data"."""
    lines = [_live_line(job) for job in live]
    known = {line.job for line in lines}
    return lines + [_stored_line(row) for row in stored if row["job"] not in known]


def stale(lines: Sequence[JobLine], age_s: float) -> list[JobLine]:
    """Return the lines as they may be shown `age_s` after the hub last answered. What is old is no data."""
    if age_s <= STALE_AFTER_S:
        return list(lines)
    return [
        replace(
            line, state="no_data", sentence=f"No data for {age_s:.0f} s. The hub last said: {line.sentence}"
        )
        for line in lines
    ]


def _live_line(job: JsonObject) -> JobLine:
    verdict = job.get("verdict") or {}
    state = job_state(job)
    return JobLine(
        job=str(job["job"]),
        state=state,
        sentence=str(verdict.get("sentence") or "No verdict yet: the hub has not judged this job."),
        since_ns=int(verdict.get("since_ns") or 0),
        attempt=int(job.get("attempt", -1)),
        step=int(job.get("step", -1)),
    )


def _stored_line(row: JsonObject) -> JobLine:
    return JobLine(
        job=str(row["job"]),
        state="no_data",
        sentence="No data: no agent of this job is connected. "
        f"Its last step on record began {clock(row['last_ns'])} UTC.",
        since_ns=int(row["last_ns"]),
        attempt=int(row["attempts"]) - 1,
        step=int(row["last_step"]),
    )


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One finding with the address of the view that shows it."""

    severity: str
    kind: str
    subject: str
    summary: str
    confidence: float
    ts_ns: int
    times: int
    href: str


def evidence(findings: Sequence[JsonObject], *, job: str) -> list[Evidence]:
    """The newest findings, the latest first, each with a link to what proves it."""
    return [
        Evidence(
            severity=row["severity"],
            kind=row["kind"],
            subject=f"{row['subject_type']} {row['subject']}",
            summary=row["summary"],
            confidence=float(row["confidence"]),
            ts_ns=row["ts_ns"],
            times=row["times"],
            href=_href(job, row),
        )
        for row in findings
    ]


def _href(job: str, row: JsonObject) -> str:
    """Where to look: the page of a rank or of a node, else the topology."""
    if row["subject_type"] == "rank" and str(row["subject"]).isdigit():
        return "rank?" + urlencode({"job": job, "rank": row["subject"]})
    if row["subject_type"] == "node":
        return "node?" + urlencode({"job": job, "node": row["subject"]})
    return "topology?" + urlencode({"job": job, "find": row["subject"]})


def live_facts(job: JsonObject) -> dict[str, str]:
    """Return what the hub knows beside the store: attempt, step, ranks and nodes.

    A job that it does not run has none.
    """
    if not job:
        return {}
    active = sum(node.get("state") == "active" for node in job.get("nodes", []))
    spare = sum(node.get("state") == "standby" for node in job.get("nodes", []))
    step = {"step": f"{job['step']:,}"} if job.get("step", -1) >= 0 else {}
    return (
        step
        | _mfu(job)
        | {
            "attempt": str(job["attempt"]) if job.get("attempt", -1) >= 0 else "-",
            "ranks": f"{job.get('world_size', 0):,}",
            "nodes": f"{active:,} + {spare:,} standby",
            "recoveries": f"{len(job.get('recoveries', [])):,}",
        }
        | ettr_facts(job)
    )


def mfu_ratio(job: JsonObject) -> float | None:
    """The model FLOPs utilisation over the last steps of a job of the hub's status.

    None where the hub does not know the device or the FLOPs.
    """
    numbers = [d.get("numbers", {}) for d in job.get("detectors", []) if d.get("analyzer") == "mfu"]
    numbers += [_evidence(f) for f in job.get("findings", []) if f.get("kind") == "mfu_decay"]
    return next((float(n["mfu"]) for n in numbers if "mfu" in n), None)


def _mfu(job: JsonObject) -> dict[str, str]:
    ratio = mfu_ratio(job)
    return {} if ratio is None else {"MFU": f"{ratio:.1%}"}


def _evidence(finding: JsonObject) -> JsonObject:
    try:
        evidence = json.loads(finding.get("evidence") or "{}")
    except ValueError:
        return {}
    return evidence if isinstance(evidence, dict) else {}
