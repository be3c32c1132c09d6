"""Asks a process beside the hub for the store at which the ranks of an attempt meet."""

from __future__ import annotations

import asyncio
import contextlib
import json
import select
import subprocess
import sys
import threading

import structlog

from pulsetrain.core.errors import Unavailable
from pulsetrain.hub.config import HubConfig
from pulsetrain.recovery.store_host import NoStores, StoreHost, is_loopback

log = structlog.get_logger()

START_S = 30.0  # importing torch from a cold disk
ANSWER_S = 5.0
IDLE_S = 120.0  # without a hub, and until ranks that were just launched meet


def stores_of(config: HubConfig) -> StoreHost:
    """What `[hub] rendezvous` asks for."""
    if config.rendezvous == "node" or (config.rendezvous == "auto" and is_loopback(config.host)):
        return NoStores()
    return AttemptStores(config.host)


class AttemptStores:
    """Stores in one child of this hub. If the child is gone, the next attempt gets a new one.

    A running attempt does not need its store until it makes a new group. The child goes on without the hub
    while ranks are connected. It listens on the hub's own address.
    """

    def __init__(self, host: str, *, idle_s: float = IDLE_S) -> None:
        self._host, self._idle_s = host, idle_s
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None
        self._ready = False
        self._given_up: set[str] = set()

    @property
    def pid(self) -> int:
        """Of the child, 0 where there is none."""
        return self._child.pid if self._child is not None and self._child.poll() is None else 0

    def prepare(self) -> None:
        """Start the child where there is none."""
        if self.pid or self._lock.locked():
            return
        with self._lock, contextlib.suppress(Unavailable):  # `open` tries again, and says so
            self._start()

    async def open(self, job: str) -> int:
        """See `StoreHost`. Takes a millisecond, and seconds where the child starts only now."""
        if job in self._given_up:
            return 0
        return await asyncio.to_thread(self._open, job)

    def give_up(self, job: str) -> None:
        """See `StoreHost`."""
        self._given_up.add(job)

    def close(self) -> None:
        """Tell the child that this hub ends."""
        if self._child is not None:
            _close_pipes(self._child)

    def _open(self, job: str) -> int:
        with self._lock:
            if not self.pid:
                self._start()
            try:
                answer = self._ask({"open": job})
            except Unavailable:
                self._end()
                raise
        if "error" in answer:
            raise Unavailable(f"no store on {self._host}: {answer['error']}")
        return int(answer["port"])

    def _start(self) -> None:
        if self._child is not None:
            log.warning("store_process_ended", code=self._child.poll())
            self._end()
        command = [sys.executable, "-P", "-m", "pulsetrain.hub.store_server", self._host, str(self._idle_s)]
        try:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # who reads the hub's would wait for this child's end
                text=True,
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(f"the store process cannot be started: {error}") from error
        self._ready = False

    def _ask(self, request: dict[str, str]) -> dict[str, str]:
        assert self._child is not None, "it was started"
        assert self._child.stdin is not None, "it has a pipe"
        assert self._child.stdout is not None, "it has a pipe"
        try:
            self._child.stdin.write(json.dumps(request) + "\n")
            self._child.stdin.flush()
        except OSError as error:
            raise Unavailable("the store process has ended") from error
        limit_s = ANSWER_S if self._ready else START_S
        readable = select.poll()  # select() knows only the first 1024 files of a process
        readable.register(self._child.stdout, select.POLLIN)
        line = self._child.stdout.readline() if readable.poll(limit_s * 1000) else ""
        if not line:
            raise Unavailable(f"the store process gives no answer in {limit_s:g} s")
        self._ready = True
        answer: dict[str, str] = json.loads(line)
        return answer

    def _end(self) -> None:
        """End a child that does not answer. Its stores end with it."""
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        child.wait()
        _close_pipes(child)


def _close_pipes(child: subprocess.Popen[str]) -> None:
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
