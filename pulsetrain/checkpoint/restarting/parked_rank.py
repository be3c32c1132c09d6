"""The rank's side of a restart in its own process: it is woken, gives up its groups, waits, and goes on.

A thread listens to the agent. Asked to abort, it shuts the connections of all groups, so that a collective
that waits for a peer raises. Where the main thread does not come out of the function by that, a signal does.
What neither reaches is killed by the agent.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import sys
import threading
from functools import cache
from types import FrameType

from pulsetrain.checkpoint.restarting.group_sockets import GroupSockets
from pulsetrain.collectors.rank.handle import RING_FD, process_handle
from pulsetrain.collectors.rank.renewal import end_attempt, renew
from pulsetrain.collectors.rank.unshared_store import leave_agents_store
from pulsetrain.protocol.rank_channel import (
    ABORT,
    LISTENING,
    OUTSIDE,
    PARKED,
    RESUME,
    RESUMED,
    RankChannel,
)

WAKE_SIGNAL = signal.SIGRTMAX - 5
"""What interrupts a main thread that sleeps, reads or computes in Python."""
WAKE_AGAIN_S = 0.25
ARENA_FD = "PULSETRAIN_ARENA_FD"


class Restart(BaseException):
    """Raised in the main thread to end an attempt. No `except Exception` of a script catches it."""


class ParkedRank:
    """What this process does when its attempt ends by a fault elsewhere. Get it from `of_process`."""

    def __init__(self, channel: RankChannel) -> None:
        self._channel, self._sockets = channel, GroupSockets()
        self._lock = threading.Lock()
        self._begun = self._inside = False
        self._listens = False
        self._aborted, self._out = threading.Event(), threading.Event()
        self._resumes: queue.SimpleQueue[tuple[dict[str, object], list[int]]] = queue.SimpleQueue()

    @staticmethod
    @cache
    def of_process() -> ParkedRank | None:
        """The one of this process. None without an agent, and in a process that the script has started."""
        if multiprocessing.parent_process() is not None:
            return None
        channel = RankChannel.inherited(os.environ)
        return None if channel is None else ParkedRank(channel)

    @property
    def aborted(self) -> bool:
        """Whether the agent has asked to end the attempt."""
        return self._aborted.is_set()

    def begin(self) -> bool:
        """Be ready to be restarted. Returns False inside another call, and outside the main thread."""
        if self._begun or threading.current_thread() is not threading.main_thread():
            return False
        self._begun = True
        if not self._listens:
            self._listens = True
            self._sockets.watch()
            signal.signal(WAKE_SIGNAL, self._interrupt)
            threading.Thread(target=self._listen, name="pulsetrain-restart", daemon=True).start()
        return True

    def end(self) -> None:
        """The function has ended for good."""
        with self._lock:
            self._begun = False
            if self.aborted:
                self._channel.send(OUTSIDE)

    def enter(self) -> None:
        """The function is about to be called. Raises `Restart` where its attempt is over already."""
        self._out.clear()
        self._inside = True
        if self.aborted:
            raise Restart("the agent ends this attempt")

    def leave(self) -> None:
        """The main thread is out of the function. It is not interrupted any more."""
        self._inside = False
        self._out.set()

    def wait_for_abort(self, timeout_s: float) -> bool:
        """Wait until the agent asks to end the attempt. Returns whether it has."""
        return self._aborted.wait(timeout_s)

    def end_attempt(self) -> None:
        """Finish what copies state, and destroy the process groups.

        Raises what a device says that does not work any more: such a process has to start anew.
        """
        self._sockets.shut()
        end_attempt(process_handle())
        destroy_groups()
        self._sockets.forget()
        _check_device()

    def park(self, reason: str) -> None:
        """Wait for the next attempt, and take over its environment, output, ring and arena.

        Ends the process where the agent is gone.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        self._aborted.clear()
        self._channel.send(PARKED, reason=reason)
        message, files = self._resumes.get()
        environment = message.get("env")
        if not isinstance(environment, dict) or len(files) != 4:
            raise SystemExit(1)
        take_over(environment, files)
        self._channel.send(RESUMED, attempt=environment.get("PULSETRAIN_ATTEMPT", ""))

    def _listen(self) -> None:
        """The thread's life. Without an agent nothing is left to do: the rank ends with it."""
        self._channel.send(LISTENING)
        while (packet := self._channel.receive()) is not None:
            op = packet[0].get("op")
            if op == ABORT:
                self._abort()
            elif op == RESUME:
                self._resumes.put(packet)
        self._resumes.put(({}, []))

    def _abort(self) -> None:
        with self._lock:
            if not self._begun:
                self._channel.send(OUTSIDE)
                return
            self._aborted.set()
        self._sockets.shut()
        _abort_devices()
        while not self._out.wait(WAKE_AGAIN_S):
            self._sockets.shut()
            signal.pthread_kill(threading.main_thread().ident or 0, WAKE_SIGNAL)

    def _interrupt(self, _signum: int, _frame: FrameType | None) -> None:
        if self._inside and self._aborted.is_set():
            raise Restart("the agent ends this attempt")


def take_over(environment: dict[str, str], files: list[int]) -> None:
    """Go on with the environment and the files of a new attempt: stdout, stderr, ring, arena."""
    numbers = (1, 2, *(int(os.environ[name]) for name in (RING_FD, ARENA_FD) if name in os.environ))
    for fd, number in zip(files, numbers, strict=True):
        os.dup2(fd, number, inheritable=True)
        os.close(fd)
    os.environ.update(environment)
    leave_agents_store(os.environ)
    renew(process_handle(), numbers[2], int(environment.get("PULSETRAIN_RESTORE_STEP", "-1")))


def destroy_groups() -> None:
    """Destroy all process groups, without a word to their peers."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    if not dist.is_available() or not dist.is_initialized():
        return
    try:
        c10d._abort_process_group()
    except Exception:  # noqa: BLE001 - a backend that cannot be aborted is shut down instead
        with contextlib.suppress(Exception):
            dist.destroy_process_group()


def _abort_devices() -> None:
    """Abort groups whose work runs on a device, as NCCL's. Not verified: written without a GPU at hand."""
    import torch
    from torch.distributed import distributed_c10d as c10d

    if not torch.cuda.is_initialized():
        return
    for group in list(c10d._world.pg_names):
        with contextlib.suppress(Exception):
            group.abort()


def _check_device() -> None:
    """Raise where CUDA is broken in this process. Not verified: written without a GPU at hand."""
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
