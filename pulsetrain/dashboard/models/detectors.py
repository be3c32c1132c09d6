"""What each detector sees."""

from __future__ import annotations

from collections.abc import Sequence

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.models.states import DETECTOR_STATES, look


def detectors(verdicts: Sequence[JsonObject]) -> list[dict[str, str]]:
    """What each detector sees, the most urgent first: name, state (a key of `DETECTOR_STATES`), reason."""
    rows: dict[str, dict[str, str]] = {}
    for verdict in verdicts:
        state = str(verdict.get("state", ""))
        reason = verdict.get("summary") or verdict.get("reason") or verdict.get("error") or ""
        row = {"name": str(verdict.get("analyzer", "?")), "state": state, "reason": str(reason)}
        before = rows.get(row["name"])
        if before is None or _detector_urgency(row) > _detector_urgency(before):
            rows[row["name"]] = row
    return sorted(rows.values(), key=lambda r: (-_detector_urgency(r), r["name"]))


def _detector_urgency(row: JsonObject) -> int:
    return look(row["state"], DETECTOR_STATES).urgency
