"""Reads the Python stacks of running processes from outside, by py-spy, without stopping them.

`--nonblocking` does not attach. It works on a process that is stopped or holds its GIL, and costs a running
one nothing. A stack that is read while the process runs may be inconsistent. A rank that hangs does not move.
Reading needs the right to trace the process: CAP_SYS_PTRACE, or the same user if the kernel does not restrict
that.
"""

from __future__ import annotations

import contextlib
import json
import linecache
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

AT_ONCE = 8  # py-spy processes side by side
MOST_FRAMES = 64  # innermost ones that are kept
MOST_THREADS = 32
MOST_HELPERS = 8  # child processes of a rank (data loaders) that are read too
TIMEOUT_S = 4.0
NOT_ALLOWED = "py-spy may not read its memory: give the agent CAP_SYS_PTRACE"
GONE = "its process is gone"

_DENIED = ("permission denied", "operation not permitted", "os error 13)", "os error 1)")
_VANISHED = ("no such file or directory", "no such process", "os error 3)")
_LAUNCHERS = ("runpy.py", "<frozen runpy>")
_IDLE = re.compile(r"(?:while (?:not )?[\w.]+:)?\s*(?:pass|continue|\.\.\.)?")
_OF_DEVICE = re.compile(r"\.(?:item|tolist|cpu|synchronize|_cuda_synchronize)\(")  # waits for a device
_LIBRARY = re.compile(r"^<|/(site|dist)-packages/|/lib/python\d")  # files that no user wrote


@dataclass(frozen=True, kw_only=True)
class ThreadStack:
    """One thread; `frames` as "function (folder/file.py:line)", outermost first."""

    thread: str
    frames: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ProcessStacks:
    """All threads of one process. The other fields are as in `DumpStacks`."""

    threads: tuple[ThreadStack, ...]
    gil: str = ""
    gil_frames: tuple[str, ...] = ()
    place: str = ""
    idle_line: bool = False
    device_line: bool = False
    cut: bool = False

    def detail(self) -> dict[str, Any]:
        """What `DumpStacks` tells of the process beside its stacks."""
        return {
            "gil": self.gil,
            "gil_frames": list(self.gil_frames),
            "place": self.place,
            "idle_line": self.idle_line,
            "device_line": self.device_line,
            "cut": self.cut,
        }


def of_node(
    pids: Mapping[int, int], *, timeout_s: float = TIMEOUT_S, program: str | None = None
) -> dict[str, Any]:
    """Read the stacks of a node's ranks (`pids` by rank) and of their child processes, equal ones folded.

    {"stacks": [{"thread", "frames", "ranks"}], "blind": {rank: one line why not}, "details": {rank: as in
    `DumpStacks`}}. Returns after about `timeout_s` whatever the processes do. Every rank is in one of the
    first two.
    """
    spy = program or find_program()
    if spy is None:
        missing = {str(r): "py-spy is not installed" for r in sorted(pids)}
        return {"stacks": [], "blind": missing, "details": {}}
    wanted = [(rank, pid, pid) for rank, pid in sorted(pids.items())]
    wanted += [(rank, pid, helper) for rank, pid in sorted(pids.items()) for helper in _helpers(pid)]
    answers = _read(sorted({helper for _, _, helper in wanted}), spy, timeout_s)
    stacks: dict[int, list[ThreadStack]] = {}
    blind: dict[str, str] = {}
    details: dict[str, dict[str, Any]] = {}
    for rank, pid, read in wanted:
        answer = answers[read]
        if isinstance(answer, str):
            if read == pid:
                blind[str(rank)] = answer
            continue
        if read == pid:
            details[str(rank)] = answer.detail()
        prefix = "" if read == pid else "child: "
        stacks.setdefault(rank, []).extend(
            ThreadStack(thread=prefix + s.thread, frames=s.frames) for s in answer.threads
        )
    return {"stacks": fold(stacks), "blind": blind, "details": details}


def fold(by_rank: Mapping[int, Iterable[ThreadStack]]) -> list[dict[str, Any]]:
    """Fold equal stacks of several ranks into one entry, the most frequent first.

    >>> same = ThreadStack(thread="MainThread", frames=("main (train.py:3)",))
    >>> fold({0: [same], 1: [same]})
    [{'thread': 'MainThread', 'frames': ['main (train.py:3)'], 'ranks': [0, 1]}]
    """
    ranks: dict[ThreadStack, set[int]] = {}
    for rank, stacks in by_rank.items():
        for stack in stacks:
            ranks.setdefault(stack, set()).add(rank)
    ordered = sorted(ranks.items(), key=lambda item: (-len(item[1]), item[0].thread, item[0].frames))
    return [{"thread": s.thread, "frames": list(s.frames), "ranks": sorted(r)} for s, r in ordered]


def find_program() -> str | None:
    """Return the path of py-spy, beside this Python or in PATH. None if there is none."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if beside.is_file() else shutil.which("py-spy")


def parse(text: str, pid: int) -> tuple[ThreadStack, ...]:
    """Parse `py-spy dump --json` of one process. Raises `ValueError` if it is something else.

    The main thread comes first and is called MainThread. Frames of the launcher around the user's script are
    left out.
    """
    return parse_process(text, pid).threads


def parse_process(text: str, pid: int) -> ProcessStacks:
    """Parse `py-spy dump --json` of one process, with the holder of its GIL and the place in the user's code.

    Raises `ValueError` if it is something else.
    """
    try:
        threads = [
            (
                t["os_thread_id"] == pid,
                str(t["thread_name"] or "thread"),
                t["frames"],
                bool(t.get("owns_gil")),
            )
            for t in json.loads(text)
        ]
        threads.sort(key=lambda t: (not t[0], t[1]))
        made = [
            ThreadStack(thread="MainThread" if main else _general(name), frames=_frames(frames))
            for main, name, frames, _ in threads[:MOST_THREADS]
        ]
        holders = [
            ("MainThread" if main else _general(name), _frames(frames))
            for main, name, frames, owns in threads
            if owns
        ]
        inner: Sequence[Mapping[str, Any]] = next((frames for main, _, frames, _ in threads if main), [])
        place, line = _place(inner), _source(inner[0]) if inner else ""
    except (KeyError, TypeError) as error:
        raise ValueError(f"not what py-spy dumps: {error!r}") from error
    kept = tuple(s for s in made if s.frames)
    gil, gil_frames = holders[0] if holders else ("", ())
    return ProcessStacks(
        threads=kept,
        gil=gil,
        gil_frames=gil_frames,
        place=place,
        idle_line=_is_idle(line),
        device_line=_OF_DEVICE.search(line) is not None,
        cut=len(threads) > MOST_THREADS,
    )


def _source(frame: Mapping[str, Any]) -> str:
    """The source of a frame's line without its comment, "" where it cannot be read."""
    return linecache.getline(str(frame["filename"]), int(frame["line"])).partition("#")[0].strip()


def _is_idle(line: str) -> bool:
    """Whether a line calls nothing and computes nothing, as `while True: pass`."""
    return bool(line) and _IDLE.fullmatch(line) is not None


def _place(inner_first: Sequence[Mapping[str, Any]]) -> str:
    """Return the innermost frame of code that is neither Python's own nor a package's, "" for none."""
    own = (f for f in inner_first if not _LIBRARY.search(str(f["filename"])))
    return next((_text(f) for f in own), "")


def _text(frame: Mapping[str, Any]) -> str:
    return f"{frame['name']} ({_short(str(frame['filename']))}:{frame['line']})"


def _frames(frames: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the frames of one thread, outermost first, from the user's script on."""
    inner_first = list(frames)
    launched = next((i for i, f in enumerate(inner_first) if _is_launcher(f)), len(inner_first))
    kept = inner_first[:launched] or inner_first
    return tuple(_text(f) for f in reversed(kept[:MOST_FRAMES]))


def _is_launcher(frame: Mapping[str, Any]) -> bool:
    return str(frame["filename"]).endswith(_LAUNCHERS)


def _short(path: str) -> str:
    """Return the last two parts of a path: enough to find a file, equal under other prefixes."""
    return "/".join(path.split("/")[-2:])


def _general(name: str) -> str:
    """Return a thread's name without the numbers that differ between ranks."""
    return re.sub(r"\d+", "N", name)


def _helpers(pid: int) -> list[int]:
    """Return the child processes of a rank, the oldest first."""
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)][:MOST_HELPERS]
    except psutil.Error:
        return []


# -- running py-spy ---------------------------------------------------------------------------------------


def _read(pids: Sequence[int], spy: str, timeout_s: float) -> dict[int, ProcessStacks | str]:
    """Return for each process its stacks, or one line why there are none."""
    deadline_s = time.monotonic() + timeout_s
    answers: dict[int, ProcessStacks | str] = {}
    with tempfile.TemporaryDirectory(prefix="pulsetrain-stacks-") as name:
        for first in range(0, len(pids), AT_ONCE):
            running = {pid: _start(pid, spy, Path(name)) for pid in pids[first : first + AT_ONCE]}
            answers |= {pid: _finish(pid, p, Path(name), deadline_s) for pid, p in running.items()}
    return answers


def _start(pid: int, spy: str, folder: Path) -> subprocess.Popen[bytes] | str:
    """Start one py-spy. Its output goes to files, because a pipe that nobody reads would block it."""
    command = [spy, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    environment = os.environ | {"RUST_BACKTRACE": "0"}
    with (folder / f"{pid}.out").open("wb") as out, (folder / f"{pid}.err").open("wb") as err:
        try:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment
            )
        except OSError as error:
            return f"py-spy does not start: {error.strerror}"


def _finish(
    pid: int, process: subprocess.Popen[bytes] | str, folder: Path, deadline_s: float
) -> ProcessStacks | str:
    if isinstance(process, str):
        return process
    try:
        code = process.wait(max(0.0, deadline_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # one that is stuck in the kernel stays
            process.wait(0.2)
        return "py-spy did not answer in time"
    if code != 0:
        return explain((folder / f"{pid}.err").read_text(errors="replace"))
    try:
        stacks = parse_process((folder / f"{pid}.out").read_text(errors="replace"), pid)
    except ValueError as error:
        return str(error)
    return stacks if stacks.threads else "no Python runs in it"


def explain(stderr: str) -> str:
    """Why py-spy failed, in one line.

    >>> explain("Error: Failed to open process\\nCaused by:\\n    0: Operation not permitted (os error 1)")
    'py-spy may not read its memory: give the agent CAP_SYS_PTRACE'
    """
    lower = stderr.lower()
    if any(word in lower for word in _DENIED):
        return NOT_ALLOWED
    if any(word in lower for word in _VANISHED):
        return GONE
    lines = [" ".join(line.split()) for line in stderr.splitlines() if line.strip()]
    return (
        f"py-spy: {lines[0].removeprefix('Error: ')[:200]}" if lines else "py-spy failed and does not say why"
    )
