"""The zygote process: imports torch once, then forks a rank or a worker for each request of its agent.

It is single-threaded and never touches CUDA, so that what it forks may do anything. `main` returns from the
request loop in each forked child, whose life then goes on in `pulsetrain.agent.processes.rank_main`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

from pulsetrain.agent.processes import rank_main, zygote_protocol

PRELOAD = (
    "numpy",
    "torch",
    "torch.distributed",
    "torch.distributed.tensor.parallel",
    "torch.distributed.pipelining",
    "torch.distributed.checkpoint",
    "pulsetrain.collectors.rank.bootstrap",
    "pulsetrain.collectors.rank.handle",
    "pulsetrain.checkpoint.checkpointer",
    "pulsetrain.agent.processes.rendezvous",
)


def main() -> None:
    """``python -c ... FD PARENT OPTIONS``: serve the agent on socket `FD` until it goes away."""
    fd, parent, options = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    zygote_protocol.die_with(parent)
    sock = socket.socket(fileno=fd)
    try:
        seconds = preload(options["preload"], options["path"])
    except Exception as error:  # noqa: BLE001 - whatever a user's module raises is reported, not swallowed
        _report(sock, {"op": "unfit", "error": f"{type(error).__name__}: {error}"})
        os._exit(1)
    threads = len(os.listdir("/proc/self/task"))
    _report(sock, {"op": "ready", "seconds": seconds, "threads": threads})
    born = Nursery(sock).serve()
    if born is not None:
        zygote_protocol.readable_by(parent)  # its stacks are read by a process that the agent starts
        rank_main.live(*born)
    os._exit(0)  # nothing to tear down, and native libraries complain when it is tried


def _report(sock: socket.socket, message: dict[str, Any]) -> None:
    """Tell the agent. Ends this process where the agent left while it imported: nobody is there to hear."""
    try:
        zygote_protocol.send(sock, message)
    except OSError:
        os._exit(0)


def preload(modules: Sequence[str], path: Sequence[str]) -> float:
    """Import `PRELOAD`, as far as this torch has it, then the user's `modules` with `path` searched first;
    seconds it took. Raises what an import of a user's module raises."""
    start = time.perf_counter()
    # torch then asks the driver, not the runtime, for GPUs: a CUDA context does not survive a fork
    asked = os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    for module in PRELOAD:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(module)
    sys.path[:0] = path
    for module in modules:
        importlib.import_module(module)
    if asked == "1":
        os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)
    gc.collect()
    gc.freeze()
    return time.perf_counter() - start


class Nursery:
    """The request loop. Every child it forked is its own session and process group."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._alive: set[int] = set()
        self._wakeup, self._signalled = socket.socketpair()
        for end in (self._wakeup, self._signalled):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._signalled.fileno(), warn_on_full_buffer=False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._sock, selectors.EVENT_READ)
        self._selector.register(self._wakeup, selectors.EVENT_READ)

    def serve(self) -> tuple[dict[str, Any], list[int]] | None:
        """In a forked child: its request and open files. In the zygote: None once the agent is gone."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._wakeup:
                    self._wakeup.recv(4096)
                    self._reap()
                elif (packet := zygote_protocol.receive(self._sock)) is None:
                    self._end()
                    return None
                elif self._obey(*packet):
                    return packet

    def _obey(self, request: dict[str, Any], fds: list[int]) -> bool:
        """Whether this process is now the child that was asked for."""
        if request["op"] == "signal":
            self._signal(request["pid"], request["signal"])
            return False
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            zygote_protocol.send(
                self._sock, {"op": "failed", "id": request["id"], "error": f"fork: {error.strerror}"}
            )
            pid = -1
        if pid == 0:
            self._forget(parent)
            return True
        for fd in fds:
            os.close(fd)
        if pid > 0:
            self._alive.add(pid)
            zygote_protocol.send(self._sock, {"op": "spawned", "id": request["id"], "pid": pid})
        return False

    def _forget(self, parent: int) -> None:
        """Make the forked child a process of its own, which shares only its lifetime with the zygote."""
        os.setsid()
        zygote_protocol.die_with(parent)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for sock in (self._sock, self._wakeup, self._signalled):
            sock.close()

    def _reap(self) -> None:
        while (ended := _peek()) is not None:
            pid, code = ended
            if (
                code != 0
            ):  # what a failed rank started must not outlive it; its group id is still its own here
                _kill_group(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self._alive.discard(pid)
            zygote_protocol.send(self._sock, {"op": "exit", "pid": pid, "code": code})

    def _signal(self, pid: int, signum: int) -> None:
        if pid in self._alive:
            _kill_group(pid, signum)

    def _end(self) -> None:
        for pid in self._alive:
            _kill_group(pid, signal.SIGKILL)
        for pid in self._alive:
            os.waitpid(pid, 0)


def _peek() -> tuple[int, int] | None:
    """A child that ended, not yet reaped: (pid, exit code or minus the signal's number)."""
    try:
        info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    if info is None:
        return None
    return info.si_pid, info.si_status if info.si_code == os.CLD_EXITED else -info.si_status


def _kill_group(pid: int, signum: int) -> None:
    try:
        os.killpg(pid, signum)
    except ProcessLookupError:  # forked, but not yet the leader of its group
        os.kill(pid, signum)
    except PermissionError:
        return
