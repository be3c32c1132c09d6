"""The zygote process: imports torch once, then forks a rank or a worker for each request of its agent.

It is single-threaded and never touches CUDA, so what it forks may do anything. `main` returns from the
request loop in each forked child, which then goes on in `pulsetrain.agent.processes.rank_main`.
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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import FrameType
from typing import Any

from pulsetrain.agent.processes import rank_main, zygote_protocol
from pulsetrain.agent.processes.process_groups import has_members, kill_group
from pulsetrain.agent.processes.signal_state import ignores, listens
from pulsetrain.agent.processes.zygote_protocol import (
    Event,
    ForkRequest,
    Request,
    ZygoteChannel,
    ZygoteOptions,
)
from pulsetrain.core.process_title import set_process_title

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
_Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None
FOR_USERS = (signal.SIGUSR1, signal.SIGUSR2)
FOR_RANKS = (signal.SIGTERM, signal.SIGINT, *FOR_USERS)
LINGER_LOOK_S = 0.05
_INDUCTOR_CACHE = "TORCHINDUCTOR_CACHE_DIR"
_NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"


def main() -> None:
    """``python -c ... FD PARENT OPTIONS``: serve the agent on socket `FD` until it goes away."""
    fd, parent = int(sys.argv[1]), int(sys.argv[2])
    options: ZygoteOptions = json.loads(sys.argv[3])
    zygote_protocol.die_with(parent)
    set_process_title(f"zygote of node {options['node']}".removesuffix(" of node "))
    channel = ZygoteChannel(socket.socket(fileno=fd))
    handlers = ignore(FOR_USERS)  # a scheduler may send them while the imports run
    try:
        seconds = preload(options["preload"], options["path"])
    except Exception as error:  # noqa: BLE001 - whatever a user's module raises is reported to the agent
        _report(channel, {"op": "preload_failed", "error": f"{type(error).__name__}: {error}"})
        os._exit(1)
    threads = len(os.listdir("/proc/self/task"))
    zygote_protocol.outlive_parent()  # to end what ranks have started. The channel tells of the agent's end
    _report(channel, {"op": "ready", "seconds": seconds, "threads": threads})
    forked = RequestLoop(channel, handlers).serve()
    if forked is not None:
        zygote_protocol.readable_by(parent)  # its stacks are read by a process that the agent starts
        rank_main.run_forked(*forked)
    os._exit(0)  # nothing to tear down, and native libraries complain when it is tried


def ignore(signals: Iterable[signal.Signals]) -> dict[signal.Signals, _Handler]:
    """Ignore signals. Returns what handled those that did something until now.

    A handler that is not Python's own, as that of `faulthandler`, stays.
    """
    own = os.getpid()
    before = {each: signal.getsignal(each) for each in signals if not ignores(own, each)}
    foreign = [each for each, handler in before.items() if not callable(handler) and listens(own, each)]
    for each in foreign:
        del before[each]
    for each in before:
        signal.signal(each, signal.SIG_IGN)
    return before


def _report(channel: ZygoteChannel, event: Event) -> None:
    """Tell the agent. Ends this process where the agent left during the imports."""
    try:
        channel.send(event)
    except OSError:
        os._exit(0)


def preload(modules: Sequence[str], path: Sequence[str]) -> float:
    """Import `PRELOAD`, then the user's `modules` with `path` searched first; the seconds it took.

    A module of `PRELOAD` that this torch lacks is left out. Raises what the import of a user's module raises.
    """
    start_s = time.perf_counter()
    # torch then asks the driver for GPUs, not the runtime: a CUDA context does not survive a fork
    set_by_us = _NVML_CHECK not in os.environ
    os.environ.setdefault(_NVML_CHECK, "1")
    cache = os.environ.get(_INDUCTOR_CACHE)
    for module in PRELOAD:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(module)
    if cache is None:
        os.environ.pop(_INDUCTOR_CACHE, None)  # torch sets it, and a script's `setdefault` would do nothing
    sys.path[:0] = path
    try:
        for module in modules:
            importlib.import_module(module)
    finally:  # what a rank searches first is decided when its script runs
        for folder in path:
            with contextlib.suppress(ValueError):  # a module of the user's may have taken it out
                sys.path.remove(folder)
    if set_by_us:
        os.environ.pop(_NVML_CHECK, None)
    gc.collect()
    gc.freeze()
    return time.perf_counter() - start_s


class RequestLoop:
    """Serves the agent's requests. Every child it forks is its own session and process group."""

    def __init__(
        self, channel: ZygoteChannel, handlers: Mapping[signal.Signals, _Handler] | None = None
    ) -> None:
        """`handlers`: of signals that are ignored already, for the children."""
        self._channel = channel
        self._children: set[int] = set()
        self._programs: set[int] = set()  # children that only start what trains, as a shell may
        self._told: dict[int, set[int]] = {}  # signals by program
        self._lingering: dict[int, int] = {}  # programs that ended before what they started: their exit codes
        # A signal for all processes of a service is for the agent and the ranks. If this one died of it, the
        # kernel would kill the ranks while they save. The agent's end ends it.
        early = {k: v for k, v in (handlers or {}).items() if ignores(os.getpid(), k)}
        self._handlers = {**early, **ignore(FOR_RANKS)}
        self._wakeup, self._signalled = socket.socketpair()
        for end in (self._wakeup, self._signalled):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._signalled.fileno(), warn_on_full_buffer=False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._channel.socket, selectors.EVENT_READ)
        self._selector.register(self._wakeup, selectors.EVENT_READ)

    def serve(self) -> tuple[ForkRequest, list[int]] | None:
        """In a forked child: its request and open files. In the zygote: None once the agent is gone."""
        while True:
            for key, _ in self._selector.select(LINGER_LOOK_S if self._lingering else None):
                if key.fileobj is self._wakeup:
                    self._wakeup.recv(4096)
                    self._reap()
                    continue
                packet = self._channel.receive()
                if packet is None:
                    self._end_children()
                    return None
                request, files = packet
                forked = self._handle(request, files)
                if forked is not None:
                    return forked, files
            self._look_at_lingering()

    def _handle(self, request: Request, files: list[int]) -> ForkRequest | None:
        """The request, where this process is now the child that was requested, else None."""
        if request["op"] == "signal":
            self._signal(request["pid"], request["signal"])
            return None
        if request["op"] == "adopt":
            self._children.add(request["pid"])
            return None
        zygote = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            reason = f"fork: {error.strerror}"
            self._tell({"op": "spawn_failed", "id": request["id"], "error": reason})
            pid = -1
        if pid == 0:
            self._become_child(zygote, keeps_ignoring=FOR_USERS if request["op"] == "call" else ())
            return request
        for fd in files:
            os.close(fd)
        if pid > 0:
            self._children.add(pid)
            if request["op"] == "spawn" and request["mode"] == "exec":
                self._programs.add(pid)
            self._tell({"op": "spawned", "id": request["id"], "pid": pid})
        return None

    def _signal(self, pid: int, signum: int) -> None:
        if pid not in self._children:
            return
        if pid in self._programs and signum != signal.SIGCONT:
            self._told.setdefault(pid, set()).add(signum)
        kill_group(pid, signum)

    def _tell(self, event: Event) -> None:
        with contextlib.suppress(OSError):  # the agent has ended, as the next packet says
            self._channel.send(event)

    def _become_child(self, zygote: int, *, keeps_ignoring: Collection[signal.Signals]) -> None:
        """Make the forked child a process of its own, which ends when the zygote ends."""
        os.setsid()
        zygote_protocol.die_with(zygote)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each, handler in self._handlers.items():
            if each not in keeps_ignoring:
                signal.signal(each, handler)
        self._selector.close()
        self._channel.close()
        self._wakeup.close()
        self._signalled.close()

    def _reap(self) -> None:
        while (ended := _peek_ended()) is not None:
            pid, code = ended
            lingers = self._was_told_to_end(pid, code) and has_members(pid)
            if code != 0 and not lingers:  # what a failed rank started must not outlive it
                kill_group(pid, signal.SIGKILL)  # before `waitpid`: the group id is still its own
            os.waitpid(pid, 0)
            if lingers:  # what it started may use the time that it has got: the agent ends that
                self._lingering[pid] = code
            else:
                self._ended(pid, code)

    def _was_told_to_end(self, pid: int, code: int) -> bool:
        """Whether a signal ended a program. After one for the user's own use, status 0 is its own end."""
        told = self._told.get(pid, set())
        return bool(told if code != 0 else told.difference(FOR_USERS))

    def _look_at_lingering(self) -> None:
        for pid, code in list(self._lingering.items()):
            if not has_members(pid):
                del self._lingering[pid]
                self._ended(pid, code)

    def _ended(self, pid: int, code: int) -> None:
        self._told.pop(pid, None)
        for pids in (self._children, self._programs):
            pids.discard(pid)
        self._tell({"op": "exit", "pid": pid, "code": code})

    def _end_children(self) -> None:
        for pid in self._children:
            kill_group(pid, signal.SIGKILL)
        for pid in self._children - self._lingering.keys():
            os.waitpid(pid, 0)


def _peek_ended() -> tuple[int, int] | None:
    """A child that ended and is not reaped yet: (pid, exit code or minus the signal's number)."""
    try:
        info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    if info is None:
        return None
    return info.si_pid, info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
