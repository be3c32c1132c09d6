"""Ends what is left of a demo once the demo itself is gone, however it went.

Every process of a demo bears a mark in its environment, which what it forks inherits. `main` runs in a
process of its own that waits for the demo to close its pipe, which the kernel does for one that was killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

from pulsetrain.faults import outside

MARK = "PULSETRAIN_DEMO"
PATIENCE_S = 5.0


def sweep(mark: str) -> list[int]:
    """SIGKILL to every other process that bears the mark; their pids."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in outside.PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return outside.send(found, signal.SIGKILL)


@contextlib.contextmanager
def reaper(mark: str) -> Iterator[None]:
    """While the block lasts, and a moment longer: whatever bears the mark afterwards is ended."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, mark], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield
    finally:
        assert process.stdin is not None, "it was opened as a pipe"
        process.stdin.close()
        process.wait()


def main() -> None:
    """``python -m pulsetrain.demo.reaper MARK``: wait for the end of standard input, then sweep."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    deadline_s = time.monotonic() + PATIENCE_S
    while sweep(sys.argv[1]) and time.monotonic() < deadline_s:
        time.sleep(0.05)


if __name__ == "__main__":
    main()
