"""Follows what a rank prints: a log file's new lines as batches of `logs`.

Memory is bounded whatever the rank prints: lines are cut, one poll reads a limited number of bytes, and a
file that grows faster than that is skipped forward, with the bytes skipped counted. So are those of which the
disk's blocks were given back before they were read: they read as zeros.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from pulsetrain.records.columns import Columns

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_RANK_PREFIX = re.compile(r"\[rank\d+\]: ?")
_LEVELS = (
    ("critical", re.compile(r"\b(CRITICAL|FATAL)\b|(^|\[)F\d{4} |^Fatal ")),
    (
        "error",
        re.compile(r"\bERROR\b|(Error|Exception):|Segmentation fault|(^|\[)E\d{4} |^Traceback |NCCL WARN"),
    ),
    ("warning", re.compile(r"\b(WARNING|WARN)\b|Warning:|(^|\[)W\d{4} ")),
    ("debug", re.compile(r"\b(DEBUG|TRACE)\b")),
)
_TRACEBACK = "Traceback (most recent call last):"
_JSON_LEVEL = re.compile(r'"(?:level|severity|levelname)"\s*:\s*"(\w+)"', re.IGNORECASE)
_JSON_NAMES = {"debug", "info", "warning", "error", "critical"}
_HOLE = bytes(4096)
_ALIASES = {"warn": "warning", "fatal": "critical", "err": "error"}


def severity(line: str) -> str:
    """Return the severity that a line states: debug, info, warning, error or critical.

    Info if it states none.
    """
    if line.startswith("{"):
        match = _JSON_LEVEL.search(line)
        if match:
            level = match[1].lower()
            level = _ALIASES.get(level, level)
            return level if level in _JSON_NAMES else "info"
    return next((name for name, pattern in _LEVELS if pattern.search(line)), "info")


def without_rank(line: str) -> str:
    """Return a line without the rank that torch puts before each line of a traceback in a distributed job.

    >>> without_rank("[rank3]:   File \"train.py\", line 7"), without_rank("[rank3] loss 2.1")
    ('  File "train.py", line 7', '[rank3] loss 2.1')
    """
    found = _RANK_PREFIX.match(line)
    return line[found.end() :] if found else line


@dataclass(frozen=True, kw_only=True)
class TailConfig:
    """How much of a rank's output is kept."""

    line_bytes: int = 8192
    """A longer line is cut here."""
    poll_bytes: int = 1 << 20
    """Most bytes that one poll reads."""
    behind_bytes: int = 16 << 20
    """A file that is ahead by more is skipped forward to its last `poll_bytes`."""
    keep_lines: int = 40
    """Lines kept in memory for the report of a rank's end."""


class Tail:
    """One file of one rank. `poll` it a few times a second, and once with `final` when the rank has ended."""

    def __init__(
        self,
        path: Path,
        *,
        source: str,
        node: str = "",
        job: str = "",
        attempt: int = 0,
        rank: int = -1,
        config: TailConfig | None = None,
        offset: int = 0,
    ) -> None:
        self._path = path
        self._same = {"source": source, "node": node, "job": job, "attempt": attempt, "rank": rank}
        self._config = config or TailConfig()
        self._offset = offset
        self._partial = b""
        self._cut = False  # the line in `_partial` was cut, and the rest of it is thrown away
        self._in_traceback = False
        self._last: deque[str] = deque(maxlen=self._config.keep_lines)
        self.skipped_bytes = 0

    @property
    def last_lines(self) -> tuple[str, ...]:
        """The newest lines, oldest first, with an unfinished one."""
        partial = self._clean(self._partial)
        return (*self._last, partial) if partial else tuple(self._last)

    def poll(self, now_ns: int, *, final: bool = False) -> Columns | None:
        """Return new lines as a batch of `logs` stamped `now_ns`, or None.

        A missing file has no lines yet.
        """
        lines = self._lines(self._read(final=final))
        if final and self._partial:
            lines += [self._clean(self._partial)]
            self._partial = b""
        lines = [line for line in lines if line.strip()]
        self._last.extend(lines)
        return self._batch(lines, now_ns) if lines else None

    def _read(self, *, final: bool) -> bytes:
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < self._offset:  # truncated or replaced: begin again
                self._offset, self._partial = 0, b""
            ahead = size - self._offset
            if ahead > (self._config.poll_bytes if final else self._config.behind_bytes):
                self._skip(size)  # at the end the newest lines tell most, and nobody reads on
            file.seek(self._offset)
            data = file.read(self._config.poll_bytes)
            self._offset += len(data)
            self.skipped_bytes += len(_HOLE) * data.count(_HOLE)
            return data
        return b""

    def _skip(self, size: int) -> None:
        target = size - self._config.poll_bytes
        self.skipped_bytes += target - self._offset
        self._offset, self._partial, self._cut = target, b"", True

    def _lines(self, data: bytes) -> list[str]:
        """Return the complete lines of the unfinished rest plus `data`. Keeps the new unfinished rest."""
        if not data:
            return []
        *whole, rest = (self._partial + data).split(b"\n")
        if whole and self._cut:
            whole, self._cut = whole[1:] if not self._partial else [self._partial, *whole[1:]], False
        self._partial = self._bounded(rest)
        return [self._clean(line) for line in whole]

    def _bounded(self, rest: bytes) -> bytes:
        """Return what must be kept of an unfinished line.

        Of a progress bar that is only what the screen shows.
        """
        carriage = rest.rstrip(b"\r").rfind(b"\r")
        rest = rest[carriage + 1 :] if carriage >= 0 else rest
        limit = self._config.line_bytes
        self._cut = self._cut or len(rest) > limit
        return rest[:limit]

    def _clean(self, line: bytes) -> str:
        """Return the line as a terminal shows it: after the last carriage return, without colours.

        The row says which rank printed it, so torch's own prefix goes.
        """
        shown = line.rstrip(b"\r\n").rpartition(b"\r")[2][: self._config.line_bytes]
        text = _ANSI.sub("", shown.decode("utf-8", errors="replace")).replace("\0", "").rstrip()
        return without_rank(text)

    def _severity(self, line: str) -> str:
        """Return a line's severity. A traceback's lines are errors up to the first that is not indented."""
        if line.endswith(_TRACEBACK):  # a progress bar may stand before it
            self._in_traceback = True
            return "error"
        if self._in_traceback:
            self._in_traceback = line.startswith((" ", "\t"))
            return "error"
        return severity(line)

    def _batch(self, lines: list[str], now_ns: int) -> Columns:
        columns = {
            **self._same,
            "ts": now_ns,
            "rule": "",
            "message": lines,
            "severity": [self._severity(line) for line in lines],
        }
        return Columns.from_values("logs", len(lines), columns)
