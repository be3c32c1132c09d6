"""How many ranks a node runs: what `--nproc-per-node` means there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from pulsetrain.collectors.machine.gpu_count import NVIDIA_GPUS, visible_gpus
from pulsetrain.core.errors import ConfigError

NAMED = ("auto", "gpu", "xpu", "cpu")
ASK_TIMEOUT_S = 300.0
"""torch may come over a slow network file system"""
_MODULES = {"auto": "accelerator", "gpu": "cuda", "xpu": "xpu"}
_ASK = (
    "import sys, torch; devices = getattr(torch, sys.argv[1]); "
    "print(devices.device_count() if devices.is_available() else 0)"
)


def devices_of_torch(name: str) -> int:
    """How many devices torch can use of those that the flag calls `name`. Raises `ConfigError`.

    Another process asks: CUDA that was asked does not survive the forks of ranks.
    """
    try:
        asked = subprocess.run(
            [sys.executable, "-P", "-c", _ASK, _MODULES[name]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASK_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"--nproc-per-node {name}: torch cannot be asked for devices: {error}") from error
    words = asked.stdout.split()
    if asked.returncode or not words or not words[-1].isdecimal():
        why = (asked.stderr.strip().splitlines() or [f"status {asked.returncode}"])[-1]
        raise ConfigError(f"--nproc-per-node {name}: torch cannot be asked for devices: {why}")
    return int(words[-1])


def local_processes(
    text: str,
    environ: Mapping[str, str] = os.environ,
    *,
    driver: Path = NVIDIA_GPUS,
    ask: Callable[[str], int] = devices_of_torch,
) -> int:
    """`--nproc-per-node` as a number: itself, or what auto, gpu, xpu and cpu mean here. Raises `ConfigError`.

    They mean what they mean to torchrun. NVIDIA's `driver` knows without an import of torch.
    """
    cpus = len(os.sched_getaffinity(0))
    if text not in NAMED:
        if not text.isdecimal() or int(text) < 1:
            raise ConfigError(f"--nproc-per-node {text!r}: allowed: a number from 1, {', '.join(NAMED)}")
        return int(text)
    if text == "cpu":
        return cpus
    devices = visible_gpus(environ, driver) if text != "xpu" and driver.is_dir() else ask(text)
    if not devices and text != "auto":
        raise ConfigError(f"--nproc-per-node {text}: torch can use no {text.upper()} here")
    return devices or cpus
