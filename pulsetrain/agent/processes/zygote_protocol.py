"""How the agent and its zygote talk: packets of one JSON object each, with open files attached.

The agent sends requests, the zygote sends events. Every message names its kind in `op`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypedDict, TypeVar

from pulsetrain.core.json import JsonObject
from pulsetrain.protocol import packets

_PR_SET_PDEATHSIG = 1
_PR_SET_PTRACER = 0x59616D61  # prctl(2); only where the Yama module restricts who may trace

Mode = Literal["script", "module", "exec"]
"""How a rank runs its program: a Python file, a Python module, or any executable."""


@dataclass(frozen=True, kw_only=True)
class RankProcess:
    """What one rank's process runs and what it inherits.

    `env` is added to the environment of the zygote. Each of `files` (file descriptors by name) is inherited,
    and its number in the rank stands in the environment under its name.
    """

    argv: Sequence[str]
    mode: Mode
    env: Mapping[str, str]
    cwd: Path
    stdout: int
    stderr: int
    files: Mapping[str, int]


class ZygoteOptions(TypedDict):
    """What a zygote is started with. `path` is searched first for the modules in `preload`."""

    node: str
    preload: list[str]
    path: list[str]


class SpawnRequest(TypedDict):
    """Fork a rank. Files: stdout, stderr, then those of `file_names`."""

    op: Literal["spawn"]
    id: int
    argv: list[str]
    mode: Mode
    env: dict[str, str]
    cwd: str
    file_names: list[str]


class CallRequest(TypedDict):
    """Fork a worker that calls ``module:function``. File: the pipe for its result."""

    op: Literal["call"]
    id: int
    target: str
    kwargs: JsonObject


class SignalRequest(TypedDict):
    """Send a signal to the process group of a child."""

    op: Literal["signal"]
    pid: int
    signal: int


class AdoptRequest(TypedDict):
    """A child that the zygote has not forked: CRIU has restored it. Its end is reported, too."""

    op: Literal["adopt"]
    pid: int


ForkRequest = SpawnRequest | CallRequest
Request = ForkRequest | SignalRequest | AdoptRequest


class ReadyEvent(TypedDict):
    """The imports are done. They took `seconds`, and the zygote has `threads` threads."""

    op: Literal["ready"]
    seconds: float
    threads: int


class PreloadFailedEvent(TypedDict):
    """A module could not be imported; the zygote ends."""

    op: Literal["preload_failed"]
    error: str


class SpawnedEvent(TypedDict):
    """The request `id` became process `pid`."""

    op: Literal["spawned"]
    id: int
    pid: int


class SpawnFailedEvent(TypedDict):
    """The request `id` could not be forked."""

    op: Literal["spawn_failed"]
    id: int
    error: str


class ExitEvent(TypedDict):
    """A child ended. `code` is its exit code, or minus the number of the signal that ended it."""

    op: Literal["exit"]
    pid: int
    code: int


Event = ReadyEvent | PreloadFailedEvent | SpawnedEvent | SpawnFailedEvent | ExitEvent

Out = TypeVar("Out", bound=Request | Event)
In = TypeVar("In", bound=Request | Event)


class Channel(Generic[Out, In]):
    """One end of the connection. It sends messages of one type and receives those of the other."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock

    def send(self, message: Out, files: Sequence[int] = ()) -> None:
        """Send one packet. Raises `OSError` where the other end is gone."""
        packets.send(self.socket, message, files)

    def receive(self) -> tuple[In, list[int]] | None:
        """The next packet and the open files that came with it; None once the other end is closed."""
        return packets.receive(self.socket)

    def close(self) -> None:
        """Close this end."""
        self.socket.close()


AgentChannel = Channel[Request, Event]
ZygoteChannel = Channel[Event, Request]


def die_with(parent: int, signum: int = signal.SIGKILL) -> None:
    """Ask the kernel to send this process `signum` when `parent` ends; end now where it already has.

    The kernel watches the thread that forked, so a parent must fork from a thread that lives as long as it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signum)


def outlive_parent() -> None:
    """Take `die_with` back."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)


def readable_by(pid: int) -> None:
    """Let `pid` and its children read this process's memory where only ancestors may (ptrace_scope 1)."""
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)
