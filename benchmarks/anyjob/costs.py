"""Processor time of processes, and what the demo says of its own undisturbed steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from anyjob.launch import environment
from pulsetrain.core.errors import PulsetrainError
from pulsetrain.faults import outside

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pids: Iterable[int], root: Path = outside.PROC) -> float:
    """Return the processor seconds of processes and of those they waited for. Gone ones count 0."""
    total = 0
    for pid in pids:
        try:
            fields = (root / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(int(field) for field in fields[11:15])
    return total / TICKS


def demo(folder: Path, steps: int, timeout_s: float) -> dict[str, Any]:
    """Run the demo. Return its report. Raises `PulsetrainError` where it wrote none."""
    report = folder / "report.json"
    command = [sys.executable, "-m", "pulsetrain.cli", "demo", "--exit", "--report", str(report)]
    command += ["--steps", str(steps)] if steps else []
    done = subprocess.run(
        command,
        env=environment(folder / "tmp"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if not report.exists():
        raise PulsetrainError(
            f"the demo ended with status {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}"
        )
    return dict(json.loads(report.read_text()))
