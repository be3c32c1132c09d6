"""The agent's side of its zygote: ask for ranks, workers and services; hear at once when one ends."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal

from pulsetrain.agent.processes import zygote_protocol
from pulsetrain.core.errors import PulsetrainError, Unavailable, UsageError

Mode = Literal["script", "module", "exec"]
OnExit = Callable[[int], None]

# Not the package's own start-up path: the folder a user stands in may hold a json.py of his.
BOOT = "import sys; del sys.path[0]; from pulsetrain.agent.processes.zygote_main import main; main()"
_SECRETS = ("PULSETRAIN_TOKEN",)


class Zygote:
    """One parked process with torch imported. Thread-safe, but `start` only from a thread that outlives it:
    the kernel ends the zygote, and with it all it forked, when that thread ends."""

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket) -> None:
        self._process = process
        self._sock = sock
        self._ids = itertools.count()
        self._lock = threading.Lock()
        self._pending: dict[int, tuple[Future[int], OnExit]] = {}
        self._alive: dict[int, OnExit] = {}
        self._ready: Future[dict[str, Any]] = Future()
        self._reader = threading.Thread(target=self._read, name="zygote", daemon=True)
        self._reader.start()

    @classmethod
    def start(
        cls,
        *,
        preload: Sequence[str] = (),
        path: Sequence[Path] = (),
        env: Mapping[str, str] = os.environ,
    ) -> Zygote:
        """Start it and return at once; `wait_ready` waits for its imports."""
        ours, theirs = zygote_protocol.pair()
        options = {"preload": list(preload), "path": [str(p) for p in path]}
        process = subprocess.Popen(
            [sys.executable, "-c", BOOT, str(theirs.fileno()), str(os.getpid()), json.dumps(options)],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            env={k: v for k, v in env.items() if k not in _SECRETS},
            start_new_session=True,  # a terminal's Ctrl-C is for the agent, which ends the rest in order
        )
        theirs.close()
        return cls(process, ours)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def dead(self) -> bool:
        """It ended, and with it everything it forked."""
        return not self._reader.is_alive()

    @property
    def ready(self) -> bool:
        """Its imports are done, or have failed: `wait_ready` returns or raises at once."""
        return self._ready.done()

    def wait_ready(self, timeout_s: float) -> dict[str, Any]:
        """{"seconds": of imports, "threads": that it runs}. Raises `UsageError` where an import failed and
        `Unavailable` where it is not ready in time."""
        try:
            return self._ready.result(timeout_s)
        except TimeoutError as error:
            raise Unavailable(f"zygote: imports not done in {timeout_s:g} s") from error

    def spawn(
        self,
        *,
        argv: Sequence[str],
        mode: Mode,
        env: Mapping[str, str],
        cwd: Path,
        stdout: int,
        stderr: int,
        fds: Mapping[str, int],
        on_exit: OnExit,
    ) -> int:
        """Fork a rank that runs `argv` as a script, module or program; its pid. `env` comes on top of the
        agent's own; each of `fds` is inherited, its number in the rank's environment under its name.

        `on_exit(code)` is called once, on the zygote's thread; the code of a killed rank is minus the signal.
        """
        request = {
            "op": "spawn",
            "argv": list(argv),
            "mode": mode,
            "env": dict(env),
            "cwd": str(cwd),
            "fd_names": list(fds),
        }
        return self._fork(request, (stdout, stderr, *fds.values()), on_exit)

    def call(self, target: str, kwargs: Mapping[str, Any], timeout_s: float) -> Any:
        """Result of ``module:function`` in a forked worker.

        Raises `Unavailable` where it takes longer or dies, `PulsetrainError` with the worker's own error.
        """
        pid, value = self.serve(target, kwargs, timeout_s)
        self.signal(pid, signal.SIGKILL)  # the result is here; nothing waits for its exit handlers
        return value

    def serve(self, target: str, kwargs: Mapping[str, Any], timeout_s: float) -> tuple[int, Any]:
        """As `call`, but leave the worker running: (pid, first value that its generator yields)."""
        reading, writing = os.pipe()
        try:
            try:
                pid = self._fork(
                    {"op": "call", "target": target, "kwargs": dict(kwargs)}, (writing,), _nobody
                )
            finally:
                os.close(writing)
            try:
                return pid, _answer(target, _read_all(reading, timeout_s))
            except PulsetrainError:
                self.signal(pid, signal.SIGKILL)
                raise
        finally:
            os.close(reading)

    def signal(self, pid: int, signum: int) -> None:
        """Send `signum` to the process group of a child; nothing where it has ended."""
        with contextlib.suppress(OSError), self._lock:
            zygote_protocol.send(self._sock, {"op": "signal", "pid": pid, "signal": int(signum)})

    def close(self) -> None:
        """Kill everything that was forked and the zygote itself; returns once they are gone."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        if not self.ready:  # it imports, has no children, and does not listen
            self._process.kill()
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(2.0)
        self._sock.close()

    def _fork(self, request: dict[str, Any], fds: Sequence[int], on_exit: OnExit) -> int:
        self.wait_ready(120.0)
        future: Future[int] = Future()
        number = next(self._ids)
        self._pending[number] = (future, on_exit)
        try:
            with self._lock:
                zygote_protocol.send(self._sock, {**request, "id": number}, fds)
            if self.dead:
                raise Unavailable("zygote: it has ended")
            return future.result(10.0)
        except OSError as error:  # TimeoutError is one
            raise Unavailable(f"zygote: {error or 'no answer in 10 s'}") from error
        finally:
            self._pending.pop(number, None)

    def _read(self) -> None:
        while (packet := zygote_protocol.receive(self._sock)) is not None:
            self._heard(packet[0])
        gone = Unavailable("zygote: it has ended")
        if not self._ready.done():
            self._ready.set_exception(gone)
        for future, _ in list(self._pending.values()):
            if not future.done():
                future.set_exception(gone)
        for on_exit in list(self._alive.values()):
            on_exit(-signal.SIGKILL)
        self._alive.clear()

    def _heard(self, message: dict[str, Any]) -> None:
        match message["op"]:
            case "ready":
                self._ready.set_result(message)
            case "unfit":
                self._ready.set_exception(UsageError(f"cannot preload: {message['error']}"))
            case "spawned":
                future, self._alive[message["pid"]] = self._pending.pop(message["id"], _NOBODY_WAITS)
                _settle(future, message["pid"])
            case "failed":
                future, _ = self._pending.pop(message["id"], _NOBODY_WAITS)
                _settle(future, Unavailable(message["error"]))
            case "exit":
                self._alive.pop(message["pid"], _nobody)(message["code"])


def _nobody(_: int) -> None:
    """Exit callback of a worker, whose result is what counts."""


def _settle(future: Future[int] | None, outcome: int | Exception) -> None:
    if future is None or future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


_NOBODY_WAITS: tuple[Future[int] | None, OnExit] = (None, _nobody)


def _read_all(fd: int, timeout_s: float) -> bytes:
    """Everything up to the end of the pipe. Raises `Unavailable` after `timeout_s`."""
    chunks = bytearray()
    deadline = time.monotonic() + timeout_s
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([fd], [], [], left)[0]:
            raise Unavailable(f"no result in {timeout_s:g} s")
        if not (chunk := os.read(fd, 65536)):
            return bytes(chunks)
        chunks += chunk


def _answer(target: str, body: bytes) -> Any:
    try:
        answer = json.loads(body)
    except ValueError as error:
        raise Unavailable(f"{target}: its worker died without a result") from error
    if "error" in answer:
        raise PulsetrainError(f"{target}: {answer['error']}")
    return answer["value"]
