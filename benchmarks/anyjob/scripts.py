"""The same script under torchrun and under `pulsetrain run`, by turns: its result and what a step takes.

A pair is one run of each. Which one goes first alternates. The hub gives way to everybody else, because in
production it has a machine of its own. The agent runs as always.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from anyjob.costs import cpu_s
from anyjob.launch import STEP, begin, environment
from anyjob.recording import restarts
from pulsetrain.core.errors import PulsetrainError
from pulsetrain.faults import outside
from pulsetrain.protocol.client import HubAddress

FINAL = re.compile(rb"^final loss (\S+)", re.MULTILINE)
LOGS = ("**/stdout.log", "**/rank_*.out")
POLL_S, CPU_S = 0.005, 0.5
SKIPPED = 10
"""steps at the start that do not count"""
Row = dict[str, Any]


class Stamps:
    """When each step was printed, seen from outside: log files are read every few milliseconds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self.steps: dict[int, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Stamps:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _follow(self) -> None:
        found_s = 0.0
        while not self._over.wait(POLL_S):
            now_s = time.monotonic()
            if now_s - found_s > 0.1 and not self.steps:
                found_s = now_s
                for path in (path for pattern in LOGS for path in self._folder.glob(pattern)):
                    self._offsets.setdefault(path, 0)
            for path in self._offsets:
                self._read(path, now_s)

    def _read(self, path: Path, now_s: float) -> None:
        with contextlib.suppress(OSError):
            if path.stat().st_size == self._offsets[path]:
                return
            with path.open("rb") as file:
                file.seek(self._offsets[path])
                whole, newline, _ = file.read().rpartition(b"\n")
            self._offsets[path] += len(whole) + len(newline)
            for match in STEP.finditer(whole):
                self.steps.setdefault(int(match[1]), now_s)


def step_s(stamps: Mapping[int, float], after_s: float = 0.0) -> float | None:
    """Return the seconds of a step: the median slope over pairs half a run apart. None below 10 steps.

    Steps within `after_s` of the first do not count.

    >>> step_s({step: 0.25 * step for step in range(100)})
    0.25
    """
    from_s = min(stamps.values(), default=0.0) + after_s
    steps = [step for step in sorted(stamps) if step >= SKIPPED and stamps[step] >= from_s]
    half = len(steps) // 2
    if half < 5:
        return None
    pairs = zip(steps, steps[half:], strict=False)
    return median((stamps[late] - stamps[early]) / (late - early) for early, late in pairs)


def cpu_a_step(samples: Sequence[tuple[int, int, float]]) -> float | None:
    """Return the processor seconds of a step from (step, live ranks, their seconds so far).

    Samples in which a rank has ended do not count. None without two that count.

    >>> cpu_a_step([(3, 2, 5.0), (10, 2, 6.0), (30, 2, 8.0), (50, 2, 10.0), (51, 1, 5.2)])
    0.1
    """
    ranks = max((live for _, live, _ in samples), default=0)
    counted = [(step, seconds) for step, live, seconds in samples if step >= SKIPPED and live == ranks]
    if len(counted) < 2 or counted[-1][0] <= counted[0][0]:
        return None
    return (counted[-1][1] - counted[0][1]) / (counted[-1][0] - counted[0][0])


def torchrun(folder: Path, ranks: int, script: Sequence[str]) -> list[str]:
    """Return the command of a run under torchrun."""
    flags = [
        "--standalone",
        "--nproc-per-node",
        str(ranks),
        "--log-dir",
        str(folder / "logs"),
        "--redirects",
        "3",
    ]
    return [sys.executable, "-m", "torch.distributed.run", *flags, *script]


def pulsetrain(folder: Path, ranks: int, script: Sequence[str], hub: HubAddress, job: str) -> list[str]:
    """Return the command of a run under Pulsetrain."""
    flags = ["--hub", hub.url, "--token", hub.token, "--job", job, "--node", f"node-of-{job}"]
    flags += [
        "--nproc-per-node",
        str(ranks),
        "--log-dir",
        str(folder / "logs"),
        "--data",
        str(folder / "data"),
    ]
    return [sys.executable, "-m", "pulsetrain.cli", "run", *flags, *script]


def watched_run(
    command: Sequence[str], folder: Path, env: Mapping[str, str], timeout_s: float, after_s: float = 0.0
) -> Row:
    """Run a command to its end. Raises `PulsetrainError` where it takes too long. See `step_s`."""
    folder.mkdir(parents=True, exist_ok=True)
    process = begin(command, folder, {**environment(folder / "tmp"), **env}, folder / "output.log")
    began_s, samples = time.monotonic(), list[tuple[int, int, float]]()
    try:
        with Stamps(folder / "logs") as stamps:
            while process.poll() is None:
                if time.monotonic() - began_s > timeout_s:
                    raise PulsetrainError(f"not done after {timeout_s:g} s: {command[3:]}")
                if stamps.steps:
                    pids = outside.ranks_below(process.pid).values()
                    samples.append((max(stamps.steps), len(pids), cpu_s(pids)))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(CPU_S)
            time.sleep(2 * POLL_S)
    finally:
        if process.poll() is None:
            outside.kill_tree(process.pid)
            process.wait()
    return {
        "exit": process.returncode,
        "final_loss": final_loss(folder / "logs"),
        "steps": len(stamps.steps),
        "step_s": step_s(stamps.steps, after_s),
        "cpu_s": cpu_a_step(samples),
        "wall_s": round(time.monotonic() - began_s, 2),
    }


def final_loss(folder: Path) -> str | None:
    """Return what the script printed as its final loss."""
    for path in (path for pattern in LOGS for path in sorted(folder.glob(pattern))):
        match = FINAL.search(path.read_bytes())
        if match:
            return match[1].decode()
    return None


def pair(
    name: str,
    script: Sequence[str],
    ranks: int,
    hub: HubAddress,
    folder: Path,
    *,
    number: int,
    timeout_s: float,
    after_s: float = 0.0,
) -> Iterator[Row]:
    """Run a script both ways, and yield one row. Steps count from `after_s` after the first."""
    runs: dict[str, Row] = {}
    for way in ("torchrun", "pulsetrain") if number % 2 == 0 else ("pulsetrain", "torchrun"):
        own = folder / way
        plain = way == "torchrun"
        job = f"{name}-{number}"
        command = torchrun(own, ranks, script) if plain else pulsetrain(own, ranks, script, hub, job)
        runs[way] = watched_run(command, own, {}, timeout_s, after_s)
    yield {"what": "pair", "job": name, "restarts": restarts(hub, f"{name}-{number}"), **runs}


def same(row: Mapping[str, Any]) -> bool:
    """Whether both runs of a pair ended with the same status and the same final loss."""
    plain, ours = row["torchrun"], row["pulsetrain"]
    known = plain["final_loss"] is not None
    return known and (plain["exit"], plain["final_loss"]) == (ours["exit"], ours["final_loss"])


def ratio(row: Mapping[str, Any], field: str) -> float | None:
    """Return a field of the run under Pulsetrain over that of the run under torchrun."""
    plain, ours = row["torchrun"][field], row["pulsetrain"][field]
    return ours / plain if plain and ours else None


def table(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return one object for each script: medians over its pairs, the lowest and the highest ratio beside."""
    by_job: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["what"] in ("pair", "recording"):
            by_job.setdefault(row["job"], []).append(row)
    return [_of_job(name, of) for name, of in by_job.items()]


def _of_job(name: str, rows: Sequence[Mapping[str, Any]]) -> Row:
    pairs = [row for row in rows if row["what"] == "pair"]
    checks = [row for row in rows if row["what"] == "recording"]
    steps = [r for row in pairs if (r := ratio(row, "step_s")) is not None]
    cpu = [r for row in pairs if (r := ratio(row, "cpu_s")) is not None]
    return {
        "name": name,
        "same_result": bool(rows) and all([*map(same, pairs), *(row["same_result"] for row in checks)]),
        "step_ratio": round(median(steps), 4) if steps else None,
        "collectives_match": _all(checks, "collectives_match"),
        "recorded": {field: _all(checks, field) for field in ("steps", "phases", "loss")},
        "restarts": sum(row.get("restarts", 0) for row in rows),
        "pairs": len(pairs),
        "step_ratios": [round(r, 3) for r in sorted(steps)],
        "rank_cpu_ratio": round(median(cpu), 4) if cpu else None,
    }


def _all(rows: Sequence[Mapping[str, Any]], field: str) -> bool | None:
    """Return whether a field is true in all rows, None without any."""
    return all(row[field] for row in rows) if rows else None
