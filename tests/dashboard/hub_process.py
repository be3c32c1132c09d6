"""The fake hub as a process of its own, and the dashboard beside it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from pulsetrain.dashboard import launch
from pulsetrain.protocol.client import HubAddress
from tests.dashboard.fake_hub import TOKEN
from tests.repository import ROOT


@contextmanager
def process(command: list[str], environment: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A child in its own process group, all of it killed at the end."""
    child = subprocess.Popen(
        command, env=os.environ | (environment or {}), stdout=subprocess.PIPE, text=True, cwd=ROOT,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield child
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


@contextmanager
def fake_hub(folder: Path, *flags: str) -> Iterator[HubAddress]:
    """The fake hub; yields its address once it serves."""
    with process([sys.executable, "-m", "tests.dashboard.fake_hub", str(folder), *flags]) as child:
        assert child.stdout is not None
        yield HubAddress(url=child.stdout.readline().strip(), token=TOKEN)


@contextmanager
def dashboard(hub: HubAddress) -> Iterator[str]:
    """The dashboard of a hub, as the hub starts it; yields its address once it serves."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    with process(launch.command(port), launch.environment(hub.url, hub.token)):
        url = f"http://127.0.0.1:{port}"
        wait_for(url)
        yield url


@retry(
    wait=wait_fixed(0.2),
    stop=stop_after_delay(120),
    reraise=True,
    retry=retry_if_exception_type(httpx.HTTPError),
)
def wait_for(url: str) -> None:
    """Return once a dashboard answers at `url`."""
    httpx.get(f"{url}/_stcore/health", timeout=20.0).raise_for_status()
