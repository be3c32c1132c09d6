"""What a host lacks to dump a running process and restore it elsewhere, with CRIU.

Where nothing is lacking, a pre-empted job of one node goes on from its processes. Else it goes on from
a saved step, and this check tells a person why, before a move.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

SYS_PTRACE, SYS_ADMIN, CHECKPOINT_RESTORE = 19, 21, 40
"""Bits of Linux's capabilities, from capability.h."""
CHECK_S = 5.0

Run = Callable[[Sequence[str]], tuple[int, str]]


def lacks(*, root: Path = Path("/"), path: str | None = None, run: Run | None = None) -> str:
    """Say in one line what this host lacks to dump a process, "" where it can.

    `path` is where programs are looked for, PATH by default. `run` gives a program's status and output.
    """
    run = run or _run
    path = os.environ.get("PATH", "") if path is None else path
    criu = shutil.which("criu", path=path)
    if criu is None:
        return "criu is not installed"
    capabilities = _capabilities(root / "proc/self/status")
    admin = capabilities >> SYS_ADMIN & 1
    restores = capabilities >> CHECKPOINT_RESTORE & 1 and capabilities >> SYS_PTRACE & 1
    if not (admin or restores):
        return (
            "no capability to dump processes: run as root, or with CAP_CHECKPOINT_RESTORE and CAP_SYS_PTRACE"
        )
    if (root / "proc/driver/nvidia/version").exists() and shutil.which("cuda-checkpoint", path=path) is None:
        return "cuda-checkpoint is not installed, and this host has NVIDIA GPUs"
    status, said = run((criu, "check"))
    if status:
        last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "")
        return f"criu check fails: {last or f'status {status}'}"[:200]
    return _too_old(run((criu, "--version"))[1], root / "proc/sys/kernel/osrelease")


def _too_old(said: str, release: Path) -> str:
    """From 6.16 on, Linux refuses options of TCP sockets that CRIU before 4.2 asks for."""
    version = re.search(r"Version: (\d+)\.(\d+)", said)
    try:
        kernel = re.match(r"(\d+)\.(\d+)", release.read_text())
    except OSError:
        return ""
    if version is None or kernel is None:
        return ""
    old = (int(version[1]), int(version[2])) < (4, 2)
    if not old or (int(kernel[1]), int(kernel[2])) < (6, 16):
        return ""
    return f"criu {version[1]}.{version[2]} cannot dump TCP sockets on Linux {kernel[0]}: 4.2 or later can"


def _capabilities(status: Path) -> int:
    """The capabilities that this process may use now, as bits. None where they cannot be read."""
    try:
        lines = status.read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("CapEff:")), 16)
    except (OSError, StopIteration, ValueError, IndexError):
        return 0


def _run(command: Sequence[str]) -> tuple[int, str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, f"{type(error).__name__}: {error}"
    return done.returncode, done.stdout + done.stderr
