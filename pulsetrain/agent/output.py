"""What ranks print: their log files, echoed to the agent's own output with a prefix."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import structlog

from pulsetrain.collectors.machine.tail import without_rank

log = structlog.get_logger()

CHUNK_BYTES = 1 << 16
TAIL_BYTES = 16384


def last_lines(path: Path, count: int) -> tuple[str, ...]:
    """The last `count` lines that are not blank, from a file's last 16 KiB. None where it cannot be read.

    Without torch's prefix, which says whose line it is.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ()
    lines = (without_rank(line.rstrip()) for line in text.splitlines())
    return tuple(line for line in lines if line.strip())[-count:]


def open_log(path: Path) -> int:
    """The file to write to. /dev/null where a full or broken disk refuses it: ranks run all the same."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o644)
    except OSError as error:
        log.warning("output_lost", path=str(path), error=error.strerror)
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


@dataclass(kw_only=True)
class _EchoedFile:
    path: Path
    prefix: str
    stream: TextIO
    fd: int = -1
    offset: int = 0
    partial: bytes = b""


class Echo:
    """Copies complete lines of files to streams. Errors of a file or a stream are ignored."""

    def __init__(self) -> None:
        self._files: list[_EchoedFile] = []
        self._lock = threading.Lock()

    def follow(self, path: Path, prefix: str, stream: TextIO) -> None:
        """Echo `path` from its first byte on; the file need not exist yet."""
        with self._lock:
            self._files.append(_EchoedFile(path=path, prefix=prefix, stream=stream))

    def poll(self, *, final: bool = False) -> bool:
        """Copy what is new, and return whether anything was. With `final`, also copy an unfinished last line,
        and forget the files."""
        with self._lock:
            before = sum(file.offset for file in self._files)
            for file in self._files:
                with contextlib.suppress(OSError, ValueError):
                    self._copy(file, final=final)
            copied = sum(file.offset for file in self._files) != before
            if final:
                self._close_files()
        return copied

    def _close_files(self) -> None:
        for file in self._files:
            if file.fd >= 0:
                os.close(file.fd)
        self._files = []

    def _copy(self, file: _EchoedFile, *, final: bool) -> None:
        if file.fd < 0:
            file.fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        while chunk := os.pread(file.fd, CHUNK_BYTES, file.offset):
            file.offset += len(chunk)
            *lines, file.partial = (file.partial + chunk).split(b"\n")
            _write(file, lines)
            if len(chunk) < CHUNK_BYTES:
                break
        if final and file.partial:
            _write(file, [file.partial])


def _write(file: _EchoedFile, lines: Iterable[bytes]) -> None:
    text = "".join(f"{file.prefix}{line.decode(errors='replace')}\n" for line in lines)
    if text:
        file.stream.write(text)
        file.stream.flush()
