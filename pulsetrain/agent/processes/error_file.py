"""What a script writes of its failure that uses torch's `record`: JSON, in a file that the launcher names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "TORCHELASTIC_ERROR_FILE"
READ_BYTES = 1 << 20


def error_lines(path: Path, count: int) -> tuple[str, ...]:
    """The last `count` lines of the traceback, else of the message. None where the file says nothing."""
    try:
        with path.open("rb") as file:
            error = json.loads(file.read(READ_BYTES))["message"]
    except (OSError, ValueError, LookupError, TypeError):
        return ()
    text = error
    if isinstance(error, Mapping):
        extra = error.get("extraInfo")
        text = (extra.get("py_callstack") if isinstance(extra, Mapping) else "") or error.get("message")
    lines = [line.rstrip() for line in str(text or "").splitlines() if line.strip()]
    return tuple(lines[-count:])


def error_file(log: Path) -> Path:
    """Where the rank with this log writes it."""
    return log.with_suffix(".error.json")
