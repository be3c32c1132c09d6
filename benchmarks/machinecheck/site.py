"""A hub and agents as processes of this machine, for benchmarks that do something to the nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pulsetrain.core.errors import PulsetrainError
from pulsetrain.protocol.client import HubClient, find_hub

Answer = dict[str, Any]


class Site:
    """A hub with this configuration, and agents by node. All is under `folder`."""

    def __init__(self, folder: Path, config: str) -> None:
        self.folder = folder
        (folder / "hub.toml").write_text(config)
        self.env = os.environ | {"PULSETRAIN_DATA": str(folder / "hub"), "OMP_NUM_THREADS": "1"}
        self.log = (folder / "log").open("ab")
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        serve = ("serve", "--data", str(folder / "hub"), "--port", "0", "--no-dashboard")
        self.hub = self.spawn({}, *serve, "--config", str(folder / "hub.toml"))

    def spawn(self, more: Mapping[str, str], *args: str) -> subprocess.Popen[bytes]:
        """Start a command of `pulsetrain` with `more` in its environment."""
        command = [sys.executable, "-m", "pulsetrain.cli", *args]
        env = self.env | dict(more)
        return subprocess.Popen(command, env=env, stdout=self.log, stderr=self.log, start_new_session=True)

    def ask(self, what: Callable[[HubClient], Any]) -> Any:
        """What the hub answers, None where it does not."""
        try:
            return what(HubClient(find_hub(environ=self.env), timeout_s=5.0))
        except PulsetrainError:
            return None

    def job(self) -> Answer:
        """The job's row of the status, {} where the hub does not answer."""
        status = self.ask(lambda hub: hub.status())
        return next(iter(status["jobs"]), {}) if status else {}

    def nodes(self) -> dict[str, Answer]:
        """The rows of the nodes."""
        return {row["node"]: row for row in self.job().get("nodes", [])}

    def close(self) -> None:
        """End everything."""
        for process in (*self.agents.values(), self.hub):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in (*self.agents.values(), self.hub):
            process.wait(timeout=90)
        self.log.close()
