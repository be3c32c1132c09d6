"""Run everything that needs a CUDA device on one GPU, in less than eight minutes, and write one JSON file.

    make gpu-check ARGS="--output gpu-check.json"

Each part runs in a process of its own with a time limit, so that one that crashes or hangs costs only itself.
A part that failed has `ok` false and an `error`. The exit status is 0 if all parts are ok, 1 if one is not,
and 2 without a CUDA device.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

LIMITS_S: Mapping[str, float] = {
    "timers": 45,
    "collectives": 45,
    "checkpoint": 60,
    "gpucheck": 45,
    "nvml": 20,
    "overhead": 120,
    "hang": 75,
    "tests": 60,
}
"""Parts in order, and how long each may take. Together less than eight minutes."""


def part(name: str, limit_s: float) -> dict[str, object]:
    """The part's JSON object, with `ok` and the seconds that it took."""
    began = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.gpucheck.parts", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return {"ok": False, "error": f"took longer than {limit_s:g} s", "seconds": limit_s}
    answer = last_object(done.stdout)
    if done.returncode or answer is None:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        answer = {"ok": False, "error": lines[-1] if lines else f"status {done.returncode}"}
    return {**answer, "seconds": round(time.monotonic() - began, 1)}


def last_object(text: str) -> dict[str, object] | None:
    """The JSON object on the last line that is one."""
    for line in reversed(text.splitlines()):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return None


def environment() -> dict[str, object]:
    """What ran: device, driver, versions."""
    import torch

    return {
        "device": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("gpu-check.json"))
    parser.add_argument("--only", choices=LIMITS_S, action="append", help="run only this part; repeatable")
    args = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("no CUDA device", file=sys.stderr)
        return 2
    began = time.monotonic()
    parts: dict[str, dict[str, object]] = {}
    for name in args.only or LIMITS_S:
        parts[name] = part(name, LIMITS_S[name])
        print(f"{name}: {'ok' if parts[name]['ok'] else parts[name].get('error', 'not ok')}", file=sys.stderr)
    result = {**environment(), "seconds": round(time.monotonic() - began, 1), "parts": parts}
    args.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 0 if all(found["ok"] for found in parts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
