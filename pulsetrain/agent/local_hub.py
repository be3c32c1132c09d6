"""A hub for one run: `pulsetrain serve` as a child, for who has none."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pulsetrain.agent.processes import zygote_protocol
from pulsetrain.core.errors import PulsetrainError, UsageError
from pulsetrain.protocol.client import HubAddress, data_folder, find_hub

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 8.0


@dataclass(frozen=True, kw_only=True)
class LocalHub:
    """A running hub of our own. `dashboard` is "" where it has none."""

    address: HubAddress
    dashboard: str


def known_hub(
    url: str | None, token: str | None, environ: Mapping[str, str] = os.environ
) -> HubAddress | None:
    """The hub that was named, or that runs on the data folder; None where there is neither."""
    try:
        hub = find_hub(url, token, environ)
    except UsageError:
        return None
    named = url or environ.get("PULSETRAIN_HUB")
    return hub if named or _alive(data_folder(environ) / "hub.json") else None


@contextlib.contextmanager
def local_hub(
    folder: Path, *, dashboard: bool = True, timeout_s: float = START_TIMEOUT_S
) -> Iterator[LocalHub]:
    """Run a hub on `folder` and free ports while the block lasts.

    Call it from the main thread: the hub gets SIGTERM when that thread ends. Raises `PulsetrainError` with
    the hub's own last line where it does not start.
    """
    process = _begin(folder, dashboard=dashboard)
    try:
        facts = _await(process, folder, timeout_s)
        yield LocalHub(
            address=HubAddress(url=facts["url"], token=facts["token"]), dashboard=facts.get("dashboard", "")
        )
    finally:
        _end(process)


def _begin(folder: Path, *, dashboard: bool) -> subprocess.Popen[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    ports = ["--port", "0", *(["--dashboard-port", "0"] if dashboard else ["--no-dashboard"])]
    with (folder / "hub.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "pulsetrain.cli", "serve", "--data", str(folder), *ports],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the agent, which ends the hub last
            preexec_fn=partial(zygote_protocol.die_with, os.getpid(), signal.SIGTERM),  # no thread runs yet
        )


def _await(process: subprocess.Popen[bytes], folder: Path, timeout_s: float) -> dict[str, Any]:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            lines = (folder / "hub.log").read_text(errors="replace").strip().splitlines() or ["no output"]
            raise PulsetrainError(f"the hub ended with status {process.returncode}: {lines[-1]}")
        with contextlib.suppress(OSError, ValueError):
            facts: dict[str, Any] = json.loads((folder / "hub.json").read_text())
            return facts
        time.sleep(0.05)
    raise PulsetrainError(f"the hub did not start in {timeout_s:g} s; see {folder / 'hub.log'}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _alive(facts: Path) -> bool:
    """Whether the process that wrote `facts` still runs; a hub that was killed leaves its file."""
    try:
        os.kill(int(json.loads(facts.read_text())["pid"]), 0)
    except (OSError, ValueError, KeyError):
        return False
    return True
