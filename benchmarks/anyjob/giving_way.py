"""A process that gives way to every other one, as if it had a machine of its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from anyjob.slowing import CPU, remove
from pulsetrain.faults import outside


@contextlib.contextmanager
def giving_way(pid: int) -> Iterator[None]:
    """Let a process run only where nobody else wants to: whoever wakes up takes its processor at once.

    A process of the lowest priority would keep it for some milliseconds. Where there is no control group for
    this, the lowest priority has to do.
    """
    group = CPU / f"any-job-idle-{os.getpid()}-{pid}"
    try:
        group.mkdir()
        (group / "cpu.idle").write_text("1")
        (group / "cgroup.procs").write_text(str(pid))
    except OSError:
        with contextlib.suppress(OSError):
            (outside.PROC / str(pid) / "autogroup").write_text("19")
    try:
        yield
    finally:
        if group.is_dir():
            with contextlib.suppress(OSError):
                (CPU / "cgroup.procs").write_text(str(pid))
            remove(group)
