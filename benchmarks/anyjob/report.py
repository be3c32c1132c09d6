"""Everything that was measured, as lines for people and as one JSON object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from anyjob import pauses, scripts, verdicts
from anyjob.kept import Kept

Row = Mapping[str, Any]


def result(kept: Kept) -> dict[str, Any]:
    """Return the fields of the benchmark. A part that did not run gives None, or counts of 0."""
    rows = kept.rows
    clean = verdicts.clean(rows)
    return {
        "benchmark": "any_job",
        "scripts": scripts.table(rows),
        "slow": verdicts.slow(rows),
        "pauses": pauses.pauses(rows),
        "hangs": pauses.hangs(rows),
        "clean_windows": clean["clean_windows"],
        "false_alarms": clean["false_alarms"],
        "clean": clean,
        "demo_step_ratio": middle(rows, "demo", "step_ratio"),
        "idle_hub_cpu_ratio": middle(rows, "idle hub", "cpu_ratio"),
        "agent_cpu_ratio": middle(rows, "quiet agent", "cpu_ratio"),
        "restarts": restarts(rows),
        "broken": [{"unit": row["unit"], "reason": row["reason"]} for row in rows if row["what"] == "broken"],
    }


def restarts(rows: Sequence[Row]) -> int:
    """Return how often a job of the slow and clean parts was launched again, which is never right."""
    newest: dict[tuple[str, int], int] = {}
    for row in rows:
        if row["what"] in ("clean", "slow", "settle"):
            launch = (row["session"], row["try"])
            newest[launch] = max(newest.get(launch, 0), row["attempt"])
    return sum(newest.values())


def middle(rows: Sequence[Row], what: str, field: str) -> float | None:
    """Return the median of a field over rows of one kind, None without any."""
    values = [row[field] for row in rows if row["what"] == what and row[field] is not None]
    return round(median(values), 4) if values else None


def lines(kept: Kept) -> Iterator[str]:
    """Return the result as people read it."""
    said = result(kept)
    for script in said["scripts"]:
        yield (
            f"{script['name']}: same result {script['same_result']}, step {script['step_ratio']} "
            f"{script['step_ratios']}, processor time of ranks {script['rank_cpu_ratio']}, "
            f"restarts {script['restarts']}, "
            f"collectives {script['collectives_match']}, recorded {script['recorded']}"
        )
    pauses_, hangs = said["pauses"], said["hangs"]
    yield f"pauses: {pauses_['restarts']} restarts in {pauses_['runs']} runs, {pauses_['finished']} finished"
    yield (
        f"hangs: {hangs['named']} of {hangs['runs']} named in {pauses.NAMED_S:g} s, "
        f"{hangs['healed']} healed in {pauses.HEALED_S:g} s; {hangs['named_s']}, {hangs['healed_s']}"
    )
    slow = said["slow"]
    yield f"slow ranks: {slow['named']} of {slow['trials']} named in time, somebody else in {slow['wrong']}"
    for name, group in slow["by"].items():
        yield (
            f"  {name}: {group['named']} of {group['trials']}, somebody else in {group['wrong']}, "
            f"p50 {group['steps_p50']} steps"
        )
    clean = said["clean"]
    alarms, windows = clean["false_alarms"], clean["clean_windows"]
    yield f"clean windows: {alarms} false alarms in {windows}; {clean['alarms']}"
    yield f"relaunches in sessions without a fault that ends a job: {said['restarts']}"
    for what in ("demo_step_ratio", "idle_hub_cpu_ratio", "agent_cpu_ratio"):
        yield f"{what}: {said[what]}"
    for unit in said["broken"]:
        yield f"broken: {unit['unit']}: {unit['reason'][:200]}"
