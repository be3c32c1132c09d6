"""The agent's side of its zygote: ask it for ranks, workers and services, and hear at once when one ends."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import structlog

from pulsetrain.agent.processes import zygote_protocol
from pulsetrain.agent.processes.process_groups import kill_group
from pulsetrain.agent.processes.zygote_protocol import (
    AgentChannel,
    Event,
    ForkRequest,
    RankProcess,
    ReadyEvent,
    ZygoteOptions,
)
from pulsetrain.core.errors import PulsetrainError, Unavailable, UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.core.open_files import give_open_files
from pulsetrain.core.readable import readable
from pulsetrain.core.supervisor import FailureCollector, LoopStatus, LoopThread
from pulsetrain.protocol import packets

log = structlog.get_logger()

OnExit = Callable[[int], None]

# Not `-m`: that would put the user's folder on the path, and it may hold a json.py of the user's own.
BOOT = (
    "import sys; sys.flags.safe_path or sys.path.pop(0); "
    "from pulsetrain.agent.processes.zygote_main import main; main()"
)
FORK_TIMEOUT_S = 10.0
READY_TIMEOUT_S = 120.0
READ_TIMEOUT_S = 1.0
STALE_AFTER_S = 10.0
_SECRETS = re.compile("PULSETRAIN_.*(TOKEN|PASSWORD)|PULSETRAIN_HUB_STORE")  # a store may hold a password


@dataclass(frozen=True)
class _PendingFork:
    """A fork that was requested: who waits for its pid, and who hears of its end."""

    pid: Future[int]
    on_exit: OnExit


class ForkTable:
    """The forks that were requested and the children that live. One thread reports, any may request."""

    def __init__(self) -> None:
        self._pending: dict[int, _PendingFork] = {}
        self._on_exit: dict[int, OnExit] = {}

    def request(self, number: int, on_exit: OnExit) -> Future[int]:
        """The pid that request `number` will get. `on_exit` is called with the exit code of the child."""
        pending = self._pending[number] = _PendingFork(Future(), on_exit)
        return pending.pid

    def forget(self, number: int) -> None:
        """Nobody waits for request `number` any more."""
        self._pending.pop(number, None)

    def spawned(self, number: int, pid: int) -> None:
        """Request `number` became process `pid`."""
        pending = self._pending.pop(number, None)
        self._on_exit[pid] = pending.on_exit if pending else _ignore_exit
        if pending and not pending.pid.done():
            pending.pid.set_result(pid)

    def failed(self, number: int, error: Exception) -> None:
        """Request `number` cannot be forked."""
        pending = self._pending.pop(number, None)
        if pending and not pending.pid.done():
            pending.pid.set_exception(error)

    def exited(self, pid: int, code: int) -> None:
        """A child ended."""
        self._on_exit.pop(pid, _ignore_exit)(code)

    @property
    def pids(self) -> list[int]:
        """The children that live."""
        return list(self._on_exit)

    def adopt(self, pid: int, on_exit: OnExit) -> None:
        """A child that nobody requested. `on_exit` is called with its exit code."""
        self._on_exit[pid] = on_exit

    def fail_all(self, error: Exception) -> None:
        """Every request fails, and every child has been killed. One callback that raises stops no other."""
        for number in list(self._pending):
            self.failed(number, error)
        failures = FailureCollector()
        while self._on_exit:
            pid, on_exit = self._on_exit.popitem()
            with failures.collect(f"process {pid}"):
                on_exit(-signal.SIGKILL)
        failures.raise_any()


class Zygote:
    """One process that has imported torch and forks ranks. Thread-safe.

    Call `start` from a thread that outlives the imports: the kernel ends the zygote when that thread ends.
    After them it ends, with everything it forked and what that has started, when this process does.
    """

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket) -> None:
        self._process = process
        self._channel = AgentChannel(sock)
        self._ids = itertools.count()
        self._send_lock = threading.Lock()
        self._forks = ForkTable()
        self._ready: Future[ReadyEvent] = Future()
        self._ended = threading.Event()
        self._reader = LoopThread("zygote_reader", self._read, stale_after_s=STALE_AFTER_S)
        self._reader.start()

    @classmethod
    def start(
        cls,
        *,
        node: str = "",
        preload: Sequence[str] = (),
        path: Sequence[Path] = (),
        env: Mapping[str, str] = os.environ,
    ) -> Zygote:
        """Start it and return at once. `wait_ready` waits for its imports."""
        ours, theirs = packets.pair()
        options = ZygoteOptions(node=node, preload=list(preload), path=[str(p) for p in path])
        safe_path = ["-P"] if sys.flags.safe_path else []  # which may come from our own command line
        process = subprocess.Popen(
            [
                sys.executable,
                *safe_path,
                "-c",
                BOOT,
                str(theirs.fileno()),
                str(os.getpid()),
                json.dumps(options),
            ],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            env={k: v for k, v in env.items() if not _SECRETS.fullmatch(k)},
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
        return self._ended.is_set()

    @property
    def loop(self) -> LoopStatus:
        """How the thread is that reads what the zygote reports."""
        return self._reader.status()

    @property
    def ready(self) -> bool:
        """Its imports are done, or have failed: `wait_ready` returns or raises at once."""
        return self._ready.done()

    def wait_ready(self, timeout_s: float) -> ReadyEvent:
        """Wait for the imports. Raises `UsageError` where one failed, `Unavailable` after `timeout_s`."""
        try:
            return self._ready.result(timeout_s)
        except TimeoutError as error:
            raise Unavailable(f"zygote: imports not done in {timeout_s:g} s") from error

    def spawn(self, rank: RankProcess, on_exit: OnExit) -> int:
        """Fork a rank; its pid. Raises `Unavailable` where it cannot be forked.

        `on_exit(code)` is called once, on the reader's thread. The code of a killed rank is minus the signal.
        """
        request = zygote_protocol.SpawnRequest(
            op="spawn",
            id=next(self._ids),
            argv=list(rank.argv),
            mode=rank.mode,
            env=dict(rank.env),
            cwd=str(rank.cwd),
            file_names=list(rank.files),
        )
        return self._fork(request, (rank.stdout, rank.stderr, *rank.files.values()), on_exit)

    def call(self, target: str, kwargs: JsonObject, timeout_s: float) -> object:
        """The JSON result of ``module:function`` in a forked worker.

        Raises `Unavailable` where it takes longer or dies, `PulsetrainError` with the worker's own error.
        """
        pid, value = self.serve(target, kwargs, timeout_s)
        self.signal(pid, signal.SIGKILL)  # the result is here; nothing waits for its exit handlers
        return value

    def serve(self, target: str, kwargs: JsonObject, timeout_s: float) -> tuple[int, object]:
        """As `call`, but leave the worker running: (pid, first value that its generator yields)."""
        reading, writing = os.pipe()
        try:
            try:
                request = zygote_protocol.CallRequest(
                    op="call", id=next(self._ids), target=target, kwargs=dict(kwargs)
                )
                pid = self._fork(request, (writing,), _ignore_exit)
            finally:
                os.close(writing)
            try:
                return pid, _result(target, _read_all(reading, timeout_s))
            except PulsetrainError:
                self.signal(pid, signal.SIGKILL)
                raise
        finally:
            os.close(reading)

    def signal(self, pid: int, signum: int) -> None:
        """Send `signum` to the process group of a child; nothing where it has ended."""
        with contextlib.suppress(OSError), self._send_lock:
            self._channel.send({"op": "signal", "pid": pid, "signal": int(signum)})

    def adopt(self, pid: int, on_exit: OnExit) -> None:
        """Take over a process that CRIU restored as a child of the zygote. See `spawn` for `on_exit`.

        Raises `Unavailable` where the zygote has ended.
        """
        self._forks.adopt(pid, on_exit)
        try:
            with self._send_lock:
                self._channel.send({"op": "adopt", "pid": pid})
        except OSError as error:
            raise Unavailable(f"zygote: {error}") from error

    def close(self) -> None:
        """Kill everything that was forked and the zygote itself; returns once they are gone."""
        with contextlib.suppress(OSError):
            self._channel.socket.shutdown(socket.SHUT_RDWR)
        if not self.ready:  # it imports, has no children, and does not read requests yet
            self._process.kill()
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.stop(2.0)
        self._channel.close()

    def _fork(self, request: ForkRequest, files: Sequence[int], on_exit: OnExit) -> int:
        self.wait_ready(READY_TIMEOUT_S)
        pid = self._forks.request(request["id"], on_exit)
        try:
            with self._send_lock:
                self._channel.send(request, files)
            if self.dead:
                raise Unavailable("zygote: it has ended")
            return pid.result(FORK_TIMEOUT_S)
        except OSError as error:  # TimeoutError is one
            raise Unavailable(f"zygote: {error or f'no answer in {FORK_TIMEOUT_S:g} s'}") from error
        finally:
            self._forks.forget(request["id"])

    def _read(self) -> float:
        """Handle the next event, or wait `READ_TIMEOUT_S` for one."""
        if not readable([self._channel.socket.fileno()], READ_TIMEOUT_S):
            return 0.0
        packet = self._channel.receive()
        if packet is not None:
            self._handle(packet[0])
            return 0.0
        gone = Unavailable("zygote: it has ended")
        for pid in self._forks.pids:  # the kernel has killed these, but not what they started
            kill_group(pid, signal.SIGKILL)
        if not self._ready.done():
            self._ready.set_exception(gone)
        try:
            self._forks.fail_all(gone)
        finally:
            self._ended.set()
            self._reader.stop()
        return 0.0

    def _handle(self, event: Event) -> None:
        match event["op"]:
            case "ready":
                self._ready.set_result(event)
            case "preload_failed":
                self._ready.set_exception(UsageError(f"cannot preload: {event['error']}"))
            case "spawned":
                self._forks.spawned(event["id"], event["pid"])
            case "spawn_failed":
                self._forks.failed(event["id"], Unavailable(event["error"]))
            case "exit":
                self._forks.exited(event["pid"], event["code"])


class ZygoteHolder:
    """Holds the node's zygote, and replaces one that died. Use it on one thread, the main one."""

    def __init__(self, start: Callable[[], Zygote]) -> None:
        """Starts the first zygote with `start`. Later ones may open as many files as this process may now."""
        self._start = start
        self._open_files = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.current = start()

    def replace_dead(self) -> bool:
        """Start a new zygote where the present one has ended, with all its ranks. Whether it had."""
        if not self.current.dead:
            return False
        log.error("zygote_died", pid=self.current.pid)
        self.current.close()
        self.current = self._start()
        give_open_files(self.current.pid, self._open_files)
        return True

    def close(self) -> None:
        """Kill the zygote and everything it forked."""
        self.current.close()


def _ignore_exit(_: int) -> None:
    """Exit callback of a worker, whose result is what counts."""


def _read_all(fd: int, timeout_s: float) -> bytes:
    """Everything up to the end of the pipe. Raises `Unavailable` after `timeout_s`."""
    chunks = bytearray()
    deadline_s = time.monotonic() + timeout_s
    while True:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or not readable([fd], left_s):
            raise Unavailable(f"no result in {timeout_s:g} s")
        if not (chunk := os.read(fd, 65536)):
            return bytes(chunks)
        chunks += chunk


def _result(target: str, body: bytes) -> object:
    try:
        answer: JsonObject = json.loads(body)
    except ValueError as error:
        raise Unavailable(f"{target}: its worker died without a result") from error
    if "error" in answer:
        raise PulsetrainError(f"{target}: {answer['error']}")
    return answer["value"]
