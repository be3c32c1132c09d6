"""Log files of a folder, one for each rank or node, compared with each other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypedDict

from pulsetrain.analytics.machines.log_rules import classify
from pulsetrain.analytics.machines.logs import MOST_LINES, AttributionRow, Line, LogSource, as_json, compare
from pulsetrain.core.errors import UsageError

MOST_BYTES = 64 << 20  # of the end of a file

_RANK = re.compile(r"ranks?[._-]?(\d+)", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(?:^|(?:^|[^a-z])(?:std|out|err|stdout|stderr|logs?)[._-]?)(\d+)$", re.IGNORECASE)


class FileReport(TypedDict):
    """One file: its subject (a rank's number, or the file's name), its lines, and who is likely to blame."""

    file: str
    subject: str
    lines: int
    blame: AttributionRow


class FolderReport(TypedDict):
    """All files of a folder, and what one of them has that the others lack."""

    files: list[FileReport]
    findings: list[dict[str, object]]


def read_folder(folder: Path) -> FolderReport:
    """Read the log files of a folder, or one file. Raises `UsageError` where there is no file to read."""
    paths = [folder] if folder.is_file() else sorted(p for p in _listed(folder) if p.is_file())
    if not paths:
        raise UsageError(f"logs {folder}: no file in it")
    ranks = all(_subject(path).isdecimal() for path in paths)
    files: list[FileReport] = []
    anomalies = compare(_lines(paths, files), LogSource(subject_type="rank" if ranks else "node"))
    return FolderReport(files=files, findings=[finding.row() for finding in anomalies])


def _lines(paths: Iterable[Path], files: list[FileReport]) -> Iterator[Line]:
    """The lines of all files, with one file in memory at a time. What is said of each goes to `files`."""
    for path in paths:
        texts, subject = _texts(path), _subject(path)
        blame = as_json(classify(texts))
        files.append(FileReport(file=path.name, subject=subject, lines=len(texts), blame=blame))
        for text in texts:
            yield Line(subject=subject, message=text)


def _listed(folder: Path) -> Sequence[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise UsageError(f"logs {folder}: {error.strerror}") from error


def _texts(path: Path) -> list[str]:
    """The last lines of a file, at most `MOST_LINES` of `MOST_BYTES`."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - MOST_BYTES))
            return file.read().decode(errors="replace").splitlines()[-MOST_LINES:]
    except OSError as error:
        raise UsageError(f"log {path}: {error.strerror}") from error


def _subject(path: Path) -> str:
    """The rank in a file's name, else the name without its ending.

    A number at the end is a rank after a word for a log, as in `out.3`, and where it is the whole name. It is
    part of a node's name elsewhere, as in `node-3`.
    """
    name = path.name if path.suffix[1:].isdecimal() else path.stem
    match = _RANK.search(name) or _LAST_NUMBER.search(name)
    return match[1] if match else name
