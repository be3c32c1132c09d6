"""Ends what is left of a demo once the demo itself has ended, in whatever way.

Every process of a demo carries a mark in its environment, which its children inherit. `main` runs in a
process of its own and waits for the end of a pipe: the kernel closes the pipe of a demo that was killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

from pulsetrain.core.process_stat import PROC
from pulsetrain.faults import outside

MARK = "PULSETRAIN_DEMO"
SWEEP_TIMEOUT_S = 5.0


def sweep(mark: str) -> list[int]:
    """Send SIGKILL to every other process that carries the mark; their pids."""
    wanted = f"{MARK}={mark}".encode()
    pids = []
    for entry in PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                pids.append(int(entry.name))
    return outside.send(pids, signal.SIGKILL)


@contextlib.contextmanager
def reaper(mark: str) -> Iterator[None]:
    """End every process that carries the mark when the block ends, or when this process is killed."""
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
    deadline_s = time.monotonic() + SWEEP_TIMEOUT_S
    while sweep(sys.argv[1]) and time.monotonic() < deadline_s:
        time.sleep(0.05)


if __name__ == "__main__":
    main()
