"""A hub and nodes on this machine, and a job that is pre-empted and resumed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pulsetrain.core.errors import PulsetrainError
from pulsetrain.core.json import JsonObject
from pulsetrain.protocol.client import HubClient, find_hub
from pulsetrain.stream.store.clickhouse import open_store

ROOT = Path(__file__).parents[2]
NODES = ("a", "b")
WAIT_S = 180.0


class Site:
    """One hub with one job, of two nodes where nothing else is said."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.name = folder, "moved"
        self.environ = os.environ | {"PULSETRAIN_DATA": str(folder / "hub"), "OMP_NUM_THREADS": "1"}
        self._log = (folder / "log").open("wb")
        self._nodes: list[subprocess.Popen[bytes]] = []
        self._hub = self._spawn("serve", "--data", str(folder / "hub"), "--port", "0", "--no-dashboard")
        self.until(lambda: self._found() is not None)

    def launch(
        self,
        ranks: int,
        command: Sequence[object],
        *,
        nodes: Sequence[str] = NODES,
        config: Path | None = None,
    ) -> None:
        """Start the job with so many ranks on each node."""
        for node in nodes:
            shape = ("--nnodes", str(len(nodes)), "--nproc-per-node", str(ranks))
            log = ("--log-dir", str(self.folder / node), *(("--config", str(config)) if config else ()))
            words = [str(word) for word in command]
            self._nodes.append(self._spawn("run", "--job", self.name, "--node", node, *shape, *log, *words))

    def job(self) -> JsonObject:
        """The job as the hub shows it, {} where it does not."""
        client = self._found()
        with contextlib.suppress(PulsetrainError):
            if client is not None:
                return next(iter(client.status()["jobs"]), {})
        return {}

    def move(self, what: str, *, wait_s: float | None = None) -> None:
        client = self._found()
        if client is None:
            raise PulsetrainError("the hub does not answer")
        client.move(self.name, what, "a benchmark", wait_s=wait_s)

    def until(self, holds: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
        """Wait until it is true. Raises `PulsetrainError` where it does not come true."""
        deadline_s = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > deadline_s:
                tail = (self.folder / "log").read_text(errors="replace")[-2000:]
                raise PulsetrainError(f"not within {timeout_s:g} s: {tail}")
            time.sleep(0.02)

    def events(self, kind: str) -> list[str]:
        """Details of all stored events of a kind."""
        address = find_hub(environ=self.environ)
        store = open_store(address.url, token=address.token)
        try:
            rows = store.query(
                "SELECT detail FROM events WHERE kind = {kind:String} ORDER BY ts", {"kind": kind}
            )
            return [str(row["detail"]) for row in rows.to_pylist()]
        finally:
            store.close()

    def finish(self) -> None:
        """Wait until the job has ended. Raises `PulsetrainError` where it failed."""
        codes = [node.wait(timeout=2 * WAIT_S) for node in self._nodes]
        self._nodes.clear()
        if any(codes):
            raise PulsetrainError(f"the job ended with {codes}: {(self.folder / 'log').read_text()[-2000:]}")

    def close(self) -> None:
        for process in (*self._nodes, self._hub):
            if process.poll() is None:
                process.terminate()
        for process in (*self._nodes, self._hub):
            process.wait(timeout=60)
        self._log.close()

    def _found(self) -> HubClient | None:
        try:
            return HubClient(find_hub(environ=self.environ), timeout_s=5.0)
        except PulsetrainError:
            return None

    def _spawn(self, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "pulsetrain.cli", *words]
        return subprocess.Popen(
            command, cwd=ROOT, env=self.environ, stdout=self._log, stderr=self._log, start_new_session=True
        )


@contextlib.contextmanager
def site(folder: Path) -> Iterator[Site]:
    """A site that is closed at the end."""
    made = Site(folder)
    try:
        yield made
    finally:
        made.close()
