"""Rows of finished parts in a file, so that a run that was cut short goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class Kept:
    """Rows by the unit of work that they belong to. Without a path they live in memory only."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.rows: list[Row] = []
        if path is not None and path.exists():
            self.rows = [json.loads(line) for line in path.read_text().splitlines() if _whole(line)]

    def done(self, unit: str) -> bool:
        """Whether a unit of work was finished in this or an earlier run. One that broke was not."""
        last = next((row for row in reversed(self.rows) if row["unit"] == unit), None)
        return last is not None and last["what"] != "broken"

    def add(self, unit: str, rows: Iterable[Row]) -> list[Row]:
        """Keep the rows of a unit that is finished. At least one row is kept of each. Returns them."""
        fresh = [{"unit": unit, **row} for row in rows] or [{"unit": unit, "what": "nothing"}]
        self.rows += fresh
        if self._path is not None:
            with self._path.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in fresh)
        return fresh


def _whole(line: str) -> bool:
    """Whether a line was written to its end."""
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
