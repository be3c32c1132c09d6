"""What ranks print: their log files, echoed to the agent's own output with a prefix."""

from __future__ import annotations

import contextlib
import io
import os
import re
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import structlog

from pulsetrain.collectors.machine.tail import without_rank
from pulsetrain.core.supervisor import LoopThread

log = structlog.get_logger()

CHUNK_BYTES = 1 << 16
TAIL_BYTES = 16384
STACKS_BYTES = 1 << 18
"""in which the stacks of all threads of a rank that aborts find room"""
LINE_BYTES = 1 << 16
"""More of one line is not echoed. What stands in its place says so."""
POLL_BYTES = 1 << 20
"""that one look takes of a file, and that are left of one that has run ahead"""
BEHIND_BYTES = 16 << 20
"""by which a file may run ahead of its echo"""
BAR_S = 15.0
"""How often the state of a progress bar is echoed whose line goes on."""
WAITING_BYTES = 4 << 20
"""which wait for a stream that takes nothing, before no more is read"""
IDLE_S = 60.0
"""longest time that a turn of the thread that writes waits for text"""
STALE_S = 600.0


def last_lines(path: Path, count: int, telling: re.Pattern[str] | None = None) -> tuple[str, ...]:
    """The last `count` lines that are not blank, from a file's last 16 KiB. None where it cannot be read.

    Before them the last one that is `telling`, where stacks of all threads have pushed it out of these.
    Without torch's prefix, which says whose line it is.
    """
    tail_bytes = TAIL_BYTES if telling is None else STACKS_BYTES
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - tail_bytes))
            text = file.read().decode(errors="replace")
    except OSError:
        return ()
    lines = [line for line in (without_rank(line.rstrip()) for line in text.splitlines()) if line.strip()]
    before = [line for line in lines[:-count] if telling is not None and telling.search(line)]
    return (*before[-1:], *lines[-count:])


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
    cut: bool = False  # of the line that `partial` begins more has been read
    bar_due_s: float | None = None  # `partial` is the state of a progress bar, which is echoed then
    bar: bytes = b""  # the state that was echoed last

    def begin_at(self, offset: int) -> None:
        """Go on there with a new line."""
        self.offset, self.partial, self.cut, self.bar_due_s = offset, b"", False, None


class Echo:
    """Copies complete lines of files to streams. Errors of a file or a stream are ignored.

    Of a line only what a terminal would show is copied: what stands after its last carriage return. A line
    that such returns keep unfinished, as that of a progress bar, is copied every `BAR_S` if it has changed.
    What is held in memory has a bound, whatever ranks print. A stream that takes nothing, such as a terminal
    that was stopped, holds nobody up: a thread writes to it. Where files run ahead, the rest is left out, and
    a line says how much.
    """

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._files: list[_EchoedFile] = []
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._writer = _StreamWriter()

    def follow(self, path: Path, prefix: str, stream: TextIO) -> None:
        """Echo `path` from its first byte on; the file need not exist yet."""
        with self._lock:
            self._files.append(_EchoedFile(path=path, prefix=prefix, stream=stream))

    def poll(self, *, final: bool = False) -> bool:
        """Take what is new, and return whether anything was. With `final`, also take an unfinished last line,
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

    def flush(self, timeout_s: float) -> None:
        """Wait until all that was taken is written, for so long at most."""
        self._writer.flush(timeout_s)

    def _close_files(self) -> None:
        for file in self._files:
            if file.fd >= 0:
                os.close(file.fd)
        self._files = []

    def _copy(self, file: _EchoedFile, *, final: bool) -> None:
        if file.fd < 0:
            file.fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        if self._writer.full and not final:
            return
        size = os.fstat(file.fd).st_size
        if size < file.offset:  # somebody has emptied it
            file.begin_at(0)
        if size - file.offset > (POLL_BYTES if final else BEHIND_BYTES):
            self._skip(file, size - POLL_BYTES)
        end = size if final else min(size, file.offset + POLL_BYTES)
        while file.offset < end:
            chunk = os.pread(file.fd, min(CHUNK_BYTES, end - file.offset), file.offset)
            if not chunk:
                break
            file.offset += len(chunk)
            *lines, rest = (file.partial + chunk).split(b"\n")
            self._take(file, lines)
            if lines:
                file.bar_due_s = None
            self._keep(file, rest)
        if final and file.partial:
            self._take(file, [file.partial])
        elif file.bar_due_s is not None:
            self._show_bar(file, file.bar_due_s)

    def _show_bar(self, file: _EchoedFile, due_s: float) -> None:
        now_s = self._monotonic_s()
        if now_s >= due_s and file.partial.strip() and file.partial != file.bar:
            file.bar_due_s, file.bar = now_s + BAR_S, file.partial
            self._writer.write(file.stream, f"{file.prefix}{self._shown(file, file.partial)}\n")

    def _skip(self, file: _EchoedFile, to: int) -> None:
        left_out = f"({to - file.offset:,} bytes of {file.path} are left out here)"
        self._writer.write(file.stream, f"{file.prefix}{left_out}\n")
        file.begin_at(to)

    def _keep(self, file: _EchoedFile, rest: bytes) -> None:
        """Keep an unfinished line, as far as it will be shown."""
        bar = rest.rstrip(b"\r").rfind(b"\r")
        kept = rest[bar + 1 :]
        if file.bar_due_s is None and b"\r" in rest:
            file.bar_due_s, file.bar = self._monotonic_s() + BAR_S, b""
        file.cut = len(kept) > LINE_BYTES or (file.cut and bar < 0)
        file.partial = kept[:LINE_BYTES]

    def _take(self, file: _EchoedFile, lines: Iterable[bytes]) -> None:
        text = "".join(f"{file.prefix}{self._shown(file, line)}\n" for line in lines)
        if text:
            self._writer.write(file.stream, text)

    def _shown(self, file: _EchoedFile, line: bytes) -> str:
        """What is echoed of the next line of a file."""
        before, _, shown = line.rstrip(b"\r").rpartition(b"\r")
        cut = len(shown) > LINE_BYTES or (file.cut and not before)
        file.cut = False
        said = f" (the rest of this line is left out here: see {file.path})" if cut else ""
        return shown[:LINE_BYTES].decode(errors="replace") + said


class _StreamWriter:
    """Writes to streams on a thread of its own, in order.

    What it cannot hold is left out, and a line says so. The thread is a daemon: a stream that never takes
    anything must not keep the process from ending.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[TextIO, str]] = deque()
        self._bytes = 0
        self._left_out: dict[TextIO, int] = {}
        self._changed = threading.Condition()
        self._loop = LoopThread("pulsetrain-echo-out", self._turn, stale_after_s=STALE_S)

    @property
    def full(self) -> bool:
        """Whether so much waits that no more should be read."""
        return self._bytes >= WAITING_BYTES

    def write(self, stream: TextIO, text: str) -> None:
        """Have it written. It is left out where twice as much waits as should."""
        with self._changed:
            if self._bytes >= 2 * WAITING_BYTES:
                self._left_out[stream] = self._left_out.get(stream, 0) + len(text)
                return
            self._say_left_out([stream])
            self._add(stream, text)
            if not self._loop.running:
                self._loop.start()
            self._changed.notify_all()

    def _add(self, stream: TextIO, text: str) -> None:
        self._waiting.append((stream, text))
        self._bytes += len(text)

    def _say_left_out(self, streams: Iterable[TextIO]) -> None:
        for stream in streams:
            if count := self._left_out.pop(stream, 0):
                self._add(stream, f"({count:,} characters of ranks are left out here: see their log files)\n")

    def flush(self, timeout_s: float) -> None:
        """Wait until nothing waits, for so long at most."""
        with self._changed:
            self._changed.wait_for(lambda: not self._bytes, timeout_s)

    def _turn(self) -> float:
        """Write what has waited longest. What a stream refuses is left out, whatever it raises."""
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._waiting), IDLE_S):
                return 0.0
            stream, text = self._waiting.popleft()
        try:
            with contextlib.suppress(OSError, ValueError):
                _write(stream, text)
        finally:
            with self._changed:
                self._bytes -= len(text)
                if not self._waiting:
                    self._say_left_out(list(self._left_out))
                self._changed.notify_all()
        return 0.0


def _write(stream: TextIO, text: str) -> None:
    """Write to a stream. One that is a file is written to without its lock, which python's own end needs."""
    if not isinstance(stream, io.TextIOWrapper):  # such as one that draws a bar below the lines
        stream.write(text)
        stream.flush()
        return
    data = memoryview(text.encode(stream.encoding or "utf-8", errors="replace"))
    writable = select.poll()
    writable.register(stream.fileno(), select.POLLOUT)
    while data:
        try:
            data = data[os.write(stream.fileno(), data) :]
        except BlockingIOError:  # a pipe that somebody has made so, as ssh and node.js do
            writable.poll()
