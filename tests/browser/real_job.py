"""A real hub with its own dashboard, and a real job of two nodes and a standby, all on this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tenacity import retry, stop_after_delay, wait_fixed

from pulsetrain.protocol.client import HubAddress
from tests.dashboard.hub_process import process, wait_for

TRAIN = """
import time
import torch, torch.distributed as dist
import pulsetrain

dist.init_process_group("gloo")
watch = pulsetrain.init(dp=dist.get_world_size())
for step in range(100_000):
    with watch.phase("forward"):
        time.sleep(0.05)
    dist.all_reduce(torch.ones(1))
    watch.log(loss=1 + 1 / (1 + step))
    watch.step(tokens=64)
"""
NODES = ("node-a", "node-b", "node-c")


@contextmanager
def hub(folder: Path) -> Iterator[dict[str, Any]]:
    """`pulsetrain serve`; yields what it writes into hub.json: url, token, dashboard."""
    command = ["serve", "--data", str(folder), "--port", "0", "--dashboard-port", "0"]
    with process([sys.executable, "-m", "pulsetrain.cli", *command]):
        facts = _facts(folder / "hub.json")
        wait_for(facts["dashboard"])
        yield facts


@retry(wait=wait_fixed(0.2), stop=stop_after_delay(120), reraise=True)
def _facts(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


@contextmanager
def job(folder: Path, address: HubAddress) -> Iterator[None]:
    """Two nodes of one rank and one standby, training until the block ends."""
    folder.mkdir(parents=True)
    script = folder / "train.py"
    script.write_text(TRAIN)
    environment = {
        "PULSETRAIN_HUB": address.url, "PULSETRAIN_TOKEN": address.token, "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    with ExitStack() as stack:
        for place, node in enumerate(NODES):
            verb = ["run", "--hub", address.url, "--quiet"] if place < 2 else ["agent", "--standby"]
            flags = ["--nnodes", "2", "--nproc-per-node", "1", "--job", "tiny", "--node", node]
            flags += ["--address", f"127.0.0.{2 + place}", "--data", str(folder / node)]
            command = [sys.executable, "-m", "pulsetrain.cli", *verb, *flags, str(script)]
            stack.enter_context(process(command, environment))
        yield
