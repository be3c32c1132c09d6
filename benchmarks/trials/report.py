"""The campaign's tables as lines and as one JSON object."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trials import kinds, score

Row = Mapping[str, Any]


def progress(rows: Sequence[Row], done: int, of: int) -> str:
    """One line for a finished session."""
    parts = []
    for row in rows:
        if row["what"] == "trial":
            said = score.judge(row)
            parts.append(f"{row['kind']} {'ok' if said['kind'] and said['top1'] else 'MISSED'}")
        elif row["what"] == "lost":
            parts.append(f"{row['kind']} lost at step {row['step']}")
    quiet = [row for row in rows if row["what"] == "clean"]
    loud = sorted({f["kind"] for row in quiet for f in row["findings"] if f["severity"] != "info"})
    seconds = next((row["seconds"] for row in rows if row["what"] == "session"), 0.0)
    alarm = f", FALSE ALARM {', '.join(loud)}" if loud else ""
    return f"[{done}/{of}] {seconds:.1f} s: {', '.join(parts)}; {len(quiet)} clean{alarm}"


def result(rows: Sequence[Row], *, sessions: int, wall_s: float) -> dict[str, Any]:
    """Everything that was measured."""
    table = score.by_kind(rows)
    modes = sorted({row["mode"] for row in rows if row["what"] == "clean"})
    stated, held_out = (score.reliability(f(rows)) for f in (score.statements, score.held_out))
    return {
        "benchmark": "campaign",
        **score.counted(rows),
        "sessions": {"planned": sessions, "done": sum(row["what"] == "session" for row in rows)},
        "lost": [dict(row) for row in rows if row["what"] == "lost"],
        "by_kind": table,
        "overall": score.overall(table, kinds.weights()) if table else {},
        "clean": {
            "all": score.clean(rows),
            **{m: score.clean(r for r in rows if r.get("mode") == m) for m in modes},
        },
        "reliability": {"stated": stated, "calibrated": held_out},
        "calibration_error": {
            "stated": score.calibration_error(stated),
            "calibrated": score.calibration_error(held_out),
        },
        "cores": os.cpu_count(),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "wall_s": round(wall_s, 1),
    }


def lines(result: Row) -> Iterator[str]:
    """The tables as people read them."""
    head = (
        "kind",
        "found",
        "95 %",
        "kind right",
        "top-1",
        "top-3",
        "p50 s",
        "p95 s",
        "p50 steps",
        "p95 steps",
    )
    yield from _aligned([head, *(_line(kind, row) for kind, row in result["by_kind"].items())])
    if result["overall"]:
        yield ""
        for what in ("detected", "kind", "top1", "top3"):
            r = result["overall"][what]
            yield (
                f"{what}: {r['hits']} of {r['of']} = {r['hits'] / r['of']:.1%} "
                f"(95 % {r['low']:.1%} to {r['high']:.1%}); weighted by the field {r['weighted']:.1%}"
            )
        for kind, row in result["by_kind"].items():
            if row["in_time"] is not None:
                limit = f"{row['within']} steps" if row["within"] else f"{score.HANG_S:g} s"
                yield f"{kind}: {row['in_time']} of {row['trials']} within {limit}"
        named = sum(row["victims_named"] for row in result["by_kind"].values())
        leading, abstained = result["overall"]["victim_root"], result["overall"]["abstained"]
        yield f"trials with a victim named: {named}, leading the incident: {leading}; abstained: {abstained}"
    for mode, r in result["clean"].items():
        alarms = r["false_alarms"]
        yield (
            f"clean windows ({mode}): {alarms['hits']} false alarms in {r['windows']} "
            f"(at most {alarms['high']:.1%}), {r['hours']:.3f} clean hours; {', '.join(r['kinds'])}"
        )
    for name, rows in result["reliability"].items():
        for r in rows:
            yield (
                f"confidence ({name}) {r['from']:.2f} to {r['to']:.2f}: "
                f"said {r['stated']:.3f}, right {r['hits']} of {r['of']}"
            )
        yield f"mean distance of confidence from frequency ({name}): {result['calibration_error'][name]:.3f}"
    yield f"peak {result['peak_rss_bytes'] / 2**20:.0f} MiB, {result['wall_s']:.0f} s"


def _line(kind: str, row: Row) -> tuple[str, ...]:
    detected = row["detected"]

    def number(name: str) -> str:
        return "-" if row[name] is None else f"{row[name]:.1f}"

    return (
        kind,
        f"{detected['hits']}/{detected['of']}",
        f"{detected['low']:.0%}-{detected['high']:.0%}",
        *(f"{row[what]['hits']}/{row[what]['of']}" for what in ("kind", "top1", "top3")),
        *(number(name) for name in ("seconds_p50", "seconds_p95", "steps_p50", "steps_p95")),
    )


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def table(rows: Sequence[Row], source: str) -> str:
    """The calibration table for pulsetrain/analytics/tables/calibration.csv."""
    lines = [
        "# Isotonic fit of stated confidence on correctness, by kind; benchmarks/campaign.py --calibrate.",
        f"# Source: {source}.",
        "kind,stated,observed,trials",
    ]
    for kind, points in score.fitted(score.statements(rows)).items():
        lines += [f"{kind},{p.stated},{p.observed},{p.trials}" for p in points]
    return "\n".join(lines) + "\n"
