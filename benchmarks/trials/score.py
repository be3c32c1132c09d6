"""From injected faults and reported findings to error rates, times and calibration, with intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import quantiles
from typing import Any

from pulsetrain.analytics import calibration
from pulsetrain.records.findings import Finding

Row = Mapping[str, Any]
Z = 1.959964  # 95 %
MIN_STATEMENTS = 8  # statements of a kind below which its own figures stand
HANG_S = 8.0  # 5 s after the product's shortest threshold
BINS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)


def wilson(hits: int, of: int) -> tuple[float, float]:
    """95 % score interval of a proportion (Wilson 1927).

    >>> tuple(round(x, 3) for x in wilson(10, 10))
    (0.722, 1.0)
    """
    if not of:
        return 0.0, 1.0
    share = hits / of
    centre = (share + Z * Z / (2 * of)) / (1 + Z * Z / of)
    half = Z / (1 + Z * Z / of) * math.sqrt(share * (1 - share) / of + Z * Z / (4 * of * of))
    return max(0.0, centre - half), min(1.0, centre + half)


def scored(finding: Finding) -> dict[str, Any]:
    """Return the part of a finding that is scored."""
    return {
        "kind": finding.kind,
        "subject_type": finding.subject_type,
        "subject": finding.subject,
        "severity": finding.severity,
        "confidence": finding.confidence,
        "stated": finding.evidence.get("stated_confidence", finding.confidence),
        "summary": finding.summary,
        "numbers": {
            k: finding.evidence[k]
            for k in ("class", "ratio", "slow_ratio", "margin")
            if k in finding.evidence
        },
    }


def rate(hits: int, of: int) -> dict[str, Any]:
    """Return a proportion with its interval, as a JSON object."""
    low, high = wilson(hits, of)
    return {"hits": hits, "of": of, "low": round(low, 4), "high": round(high, 4)}


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the value below which `share` of the values lie, or None without values."""
    if not values:
        return None
    if len(values) == 1:
        return round(values[0], 3)
    return round(quantiles(values, n=100, method="inclusive")[round(share * 100) - 1], 3)


def names(row: Row, subject_type: str, subject: str) -> bool:
    """Whether this subject names the fault of the trial."""
    return any(
        subject_type == kind and (name in ("", subject) or subject.split(":")[0] == name)
        for kind, name in row["subjects"]
    )


def right(row: Row, finding: Row) -> bool:
    """Whether a finding names the injected fault: kind and subject."""
    return finding["kind"] in row["kinds"] and names(row, finding["subject_type"], finding["subject"])


def blames_victim(row: Row, finding: Row) -> bool:
    """A rank or node is accused of something that was not done to it."""
    accused = finding["subject_type"] in ("rank", "node") and finding["severity"] != "info"
    if not accused or names(row, finding["subject_type"], finding["subject"]):
        return False
    if finding["subject_type"] == "rank" and int(finding["subject"]) in row["struck"]:
        return False
    return finding["subject"] not in row["nodes"]


def judge(row: Row) -> dict[str, Any]:
    """Return the result of one trial.

    `kind`: the leading hypothesis, or a finding beside it, is of a right kind. `top1` and `top3`: the first
    hypothesis, or one of the first three, names the culprit. Times run from the first step of the fault.
    """
    reports = [look for look in row["looks"] if look["findings"]]
    judged = reports[-1] if reports else None
    hits = [look for look in reports if any(right(row, f) for f in look["findings"])]
    kinds = [f["kind"] for f in judged["findings"]] if judged else []
    roots = judged["hypotheses"] if judged else []
    return {
        "detected": bool(hits),
        "kind": bool(set(kinds) & set(row["kinds"])),
        "top1": bool(roots) and _is(row, roots[0]),
        "top3": any(_is(row, root) for root in roots),
        "seconds": hits[0]["seconds"] if hits else None,
        "steps": min((look["steps"] for look in hits if look["steps"] >= 0), default=None),
        "victims": sorted(
            {f["subject"] for look in reports for f in look["findings"] if blames_victim(row, f)}
        ),
        "victim_root": bool(roots) and not _is(row, roots[0]) and roots[0].split(" ")[0] in ("rank", "node"),
        "abstained": not reports and any(look["abstained"] for look in row["looks"]),
    }


def _is(row: Row, root: str) -> bool:
    kind, _, subject = root.partition(" ")
    return names(row, kind, subject)


def by_kind(rows: Iterable[Row]) -> dict[str, dict[str, Any]]:
    """Return a summary of the trials of each kind, in order of first appearance."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row["what"] == "trial":
            groups.setdefault(row["kind"], []).append(row)
    return {kind: _summary(group) for kind, group in groups.items()}


def _summary(rows: Sequence[Row]) -> dict[str, Any]:
    judged = [judge(row) for row in rows]
    detected = [j for j in judged if j["detected"]]
    steps = [j["steps"] for j in detected if j["steps"] is not None]
    within = rows[0]["within"]
    return {
        "trials": len(rows),
        "detected": rate(len(detected), len(rows)),
        "kind": rate(sum(j["kind"] for j in judged), len(rows)),
        "top1": rate(sum(j["top1"] for j in judged), len(rows)),
        "top3": rate(sum(j["top3"] for j in judged), len(rows)),
        "seconds_p50": percentile([j["seconds"] for j in detected], 0.5),
        "seconds_p95": percentile([j["seconds"] for j in detected], 0.95),
        "steps_p50": percentile(steps, 0.5),
        "steps_p95": percentile(steps, 0.95),
        "within": within,
        "in_time": _in_time(rows[0], detected),
        "abstained": sum(j["abstained"] for j in judged),
        "victims_named": sum(bool(j["victims"]) for j in judged),
        "victim_root": sum(j["victim_root"] for j in judged),
    }


def _in_time(row: Row, detected: Sequence[Row]) -> int | None:
    """Return how many were detected within the limit of their kind, or None where it has no limit.

    The limit is a number of steps, or for a hang 5 s after its threshold.
    """
    if row["within"]:
        return sum(j["steps"] is not None and j["steps"] <= row["within"] for j in detected)
    return sum(j["seconds"] <= HANG_S for j in detected) if row["stalls"] else None


def overall(table: Mapping[str, Mapping[str, Any]], shares: Mapping[str, float]) -> dict[str, Any]:
    """Return the rates of all trials, and the rates weighted by how often each kind occurs in the field."""
    total: dict[str, Any] = {"trials": sum(r["trials"] for r in table.values())}
    for what in ("detected", "kind", "top1", "top3"):
        hits, of = (sum(r[what][part] for r in table.values()) for part in ("hits", "of"))
        weight = sum(shares.get(kind, 0.0) for kind in table) or 1.0
        weighted = (
            sum(shares.get(k, 0.0) * r[what]["hits"] / r[what]["of"] for k, r in table.items()) / weight
        )
        total[what] = {**rate(hits, of), "weighted": round(weighted, 4)}
    total["victim_root"] = sum(r["victim_root"] for r in table.values())
    total["abstained"] = sum(r["abstained"] for r in table.values())
    return total


def counted(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the figures that other programs read: numbers of trials and windows, and seconds to detect."""
    judged = [judge(row) for row in rows if row["what"] == "trial"]
    seconds = [j["seconds"] for j in judged if j["detected"]]
    windows = clean(rows)
    return {
        "trials": len(judged),
        "kind_correct": sum(j["kind"] for j in judged),
        "top1": sum(j["top1"] for j in judged),
        "top3": sum(j["top3"] for j in judged),
        "clean_windows": windows["windows"],
        "false_alarms": windows["false_alarms"]["hits"],
        "abstained": sum(j["abstained"] for j in judged),
        "mttd_p50_s": percentile(seconds, 0.5),
        "mttd_p95_s": percentile(seconds, 0.95),
    }


def clean(rows: Iterable[Row]) -> dict[str, Any]:
    """Return how many windows without a fault have a finding, and one that asks for action."""
    windows = [row for row in rows if row["what"] == "clean"]
    alarms = [w for w in windows if any(f["severity"] != "info" for f in w["findings"])]
    any_ = [w for w in windows if w["findings"]]
    hours = sum(w.get("seconds", 0.0) for w in windows) / 3600
    return {
        "windows": len(windows),
        "false_alarms": rate(len(alarms), len(windows)),
        "with_information": rate(len(any_), len(windows)),
        "hours": round(hours, 4),
        "alarms_an_hour": round(len(alarms) / hours, 3) if hours else None,
        "kinds": sorted({f["kind"] for w in alarms for f in w["findings"]}),
    }


Statement = tuple[str, float, bool]  # kind, stated confidence, right


def statements(rows: Iterable[Row]) -> list[Statement]:
    """Return every finding of the last look of a trial, and of clean windows, as its analyzer states it."""
    stated: list[Statement] = []
    for row in rows:
        if row["what"] == "clean":
            stated += [(f["kind"], f["stated"], False) for f in row["findings"]]
        elif row["what"] == "trial":
            reports = [look["findings"] for look in row["looks"] if look["findings"]]
            stated += [(f["kind"], f["stated"], true_of(row, f)) for f in (reports[-1] if reports else [])]
    return stated


def fitted(stated: Iterable[Statement]) -> dict[str, tuple[calibration.CalibrationPoint, ...]]:
    """Return the calibration of every kind with at least `MIN_STATEMENTS` statements."""
    by_kind: dict[str, list[tuple[float, bool]]] = {}
    for kind, confidence, right_ in stated:
        by_kind.setdefault(kind, []).append((confidence, right_))
    return {
        kind: calibration.fit(of_kind)
        for kind, of_kind in sorted(by_kind.items())
        if len(of_kind) >= MIN_STATEMENTS
    }


def held_out(rows: Sequence[Row]) -> list[Statement]:
    """Return the statements of each half of the sessions, calibrated by the other half."""
    halves = [statements(r for r in rows if r.get("session", 0) % 2 == half) for half in (0, 1)]
    calibrated: list[Statement] = []
    for mine, other in ((halves[0], halves[1]), (halves[1], halves[0])):
        table = fitted(other)
        calibrated += [(kind, calibration.calibrated(c, table.get(kind, ())), ok) for kind, c, ok in mine]
    return calibrated


def true_of(row: Row, finding: Row) -> bool:
    """Whether a finding is true: it names the fault, or a real consequence of it."""
    if right(row, finding):
        return True
    if finding["subject_type"] == "rank" and int(finding["subject"]) in row["struck"]:
        return finding["kind"] in ("straggler", "fail_slow", "data_stall")
    return finding["subject_type"] == "job" and finding["kind"] in ("mfu_decay", "fail_slow")


def reliability(statements: Iterable[tuple[str, float, bool]]) -> list[dict[str, Any]]:
    """Return the observed frequency for bins of stated confidence."""
    rows = []
    every = list(statements)
    for low, high in pairwise(BINS):
        inside = [t for t in every if low <= t[1] < high or (high == 1.0 and t[1] == 1.0)]
        if inside:
            hits = sum(t[2] for t in inside)
            stated = sum(t[1] for t in inside) / len(inside)
            rows.append({"from": low, "to": high, "stated": round(stated, 3), **rate(hits, len(inside))})
    return rows


def calibration_error(rows: Sequence[Row]) -> float:
    """Return the mean distance of stated confidence from observed frequency, over findings."""
    total = sum(r["of"] for r in rows)
    return (
        round(sum(r["of"] * abs(r["stated"] - r["hits"] / r["of"]) for r in rows) / total, 4)
        if total
        else 0.0
    )
