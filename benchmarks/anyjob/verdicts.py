"""Was the slow rank named in time, and was anybody else? Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trials.score import judge as trial
from trials.score import rate

from anyjob.plan import STEPS

Row = Mapping[str, Any]
SLOW = frozenset({"straggler", "fail_slow"})
ABOUT = frozenset({"session", "job", "variant", "pinned", "try", "unit"})
ACCUSED = frozenset({"rank", "node", "group", "link", "stage", "gpu"})


def accusations(row: Row) -> list[tuple[int, Row]]:
    """Return (steps since the begin, finding) for every finding that begins in a row and blames somebody."""
    known, seen = set(row["before"]), []
    for look in row["looks"]:
        for finding in look["findings"]:
            name = _key(finding)
            if name in known or finding["severity"] == "info" or finding["subject_type"] not in ACCUSED:
                continue
            known.add(name)
            seen.append((look["steps"], finding))
    return seen


def _key(finding: Row) -> str:
    return f"{finding['kind']} {finding['subject_type']} {finding['subject']}"


def names(row: Row, finding: Row) -> bool:
    """Whether a finding's subject is a struck rank, or a node all of whose ranks are struck."""
    if finding["subject_type"] == "rank":
        return int(finding["subject"]) in row["struck"]
    return finding["subject_type"] == "node" and finding["subject"] in row["nodes"]


def judge(row: Row, settle: Row | None = None) -> dict[str, Any]:
    """Return the result of one episode. `settle` is what came after it: nobody else may be named there.

    `named`: a struck rank is called slow within `STEPS` steps. `wrong`: whoever else was blamed.
    """
    said = accusations(row)
    after = accusations(settle) if settle else []
    right = [(steps, f) for steps, f in said if names(row, f) and f["kind"] in SLOW]
    wrong = [_key(f) for _, f in [*said, *after] if not names(row, f)]
    return {
        "named": any(steps <= STEPS for steps, _ in right),
        "steps": min((steps for steps, _ in right), default=None),
        "wrong": sorted(set(wrong)),
    }


def episodes(rows: Sequence[Row]) -> list[tuple[Row, Row | None]]:
    """Return each episode with the settling that follows it in its session."""
    result: list[tuple[Row, Row | None]] = []
    for i, row in enumerate(rows):
        if row["what"] != "slow":
            continue
        after = rows[i + 1] if i + 1 < len(rows) else None
        same = after is not None and after["what"] == "settle" and after["session"] == row["session"]
        result.append((row, after if same else None))
    return result


def slow(rows: Sequence[Row]) -> dict[str, Any]:
    """Return {"trials", "named", "wrong"} over all episodes, and the same for each job and way.

    `step_ms_p50` is the length of a step while a rank is slow.
    """
    judged = [(row, judge(row, settle)) for row, settle in episodes(rows)]
    groups: dict[str, list[dict[str, Any]]] = {}
    for row, verdict in judged:
        for name in (
            f"{row['job']}/{row['variant']}",
            f"way {row['way']}",
            "pinned" if row["pinned"] else "free",
        ):
            groups.setdefault(name, []).append(verdict)
    lengths = sorted(1000 * row["seconds"] / row["steps"] for row, _ in judged if row.get("seconds"))
    return {
        **_counts([v for _, v in judged]),
        "step_ms_p50": round(lengths[len(lengths) // 2]) if lengths else None,
        "by": {name: _counts(of) for name, of in sorted(groups.items())},
    }


def _counts(verdicts: Sequence[Row]) -> dict[str, Any]:
    steps = sorted(v["steps"] for v in verdicts if v["steps"] is not None)
    return {
        "trials": len(verdicts),
        "named": sum(v["named"] for v in verdicts),
        "wrong": sum(bool(v["wrong"]) for v in verdicts),
        "steps_p50": steps[len(steps) // 2] if steps else None,
    }


def clean(rows: Iterable[Row]) -> dict[str, Any]:
    """Return how many clean windows there were, and in how many somebody was blamed."""
    windows = [row for row in rows if row["what"] == "clean"]
    alarms = [[_key(f) for _, f in accusations(row)] for row in windows]
    count = sum(bool(names_) for names_ in alarms)
    return {
        "clean_windows": len(windows),
        "false_alarms": count,
        "rate": rate(count, len(windows)),
        "alarms": sorted({name for names_ in alarms for name in names_}),
    }


def line(row: Row, settle: Row | None = None) -> str:
    """Return what became of one row, for people."""
    if row["what"] == "slow":
        verdict = judge(row, settle)
        who = ",".join(map(str, row["struck"]))
        result = f"named after {verdict['steps']} steps" if verdict["named"] else "NOT NAMED"
        wrong = f", WRONG {verdict['wrong']}" if verdict["wrong"] else ""
        return f"rank {who} {row['factor']}x by {row['way']}: {result}{wrong}"
    if row["what"] == "trial":
        said = trial(row)
        right = "ok" if said["kind"] and said["top1"] else "MISSED"
        return f"{row['kind']}: {right}, victims {said['victims']}"
    if "before" not in row:
        return ", ".join(f"{name} {row[name]}" for name in row if name not in ABOUT)
    alarms = [_key(f) for _, f in accusations(row)]
    return f"{row['what']} {row['steps']} steps{': ' + str(alarms) if alarms else ''}"
