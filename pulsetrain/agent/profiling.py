"""Asks ranks of this node for a profile of the same steps, and collects their traces."""

from __future__ import annotations

import base64
import contextlib
import os
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from pulsetrain.collectors.rank.profile import trace_path
from pulsetrain.core.json import JsonObject
from pulsetrain.protocol.messages import Profile

POLL_S = 0.05
MOST_BYTES = 9 << 20  # of all traces of one reply; a message has 16 MiB at most, and base64 adds a third


class ProfiledRank(Protocol):
    """A rank as this module sees it."""

    rank: int
    code: int | None

    @property
    def profile_prefix(self) -> str: ...
    def ask_for_profile(self, number: int, first_step: int, steps: int) -> None: ...
    def call_off_profile(self) -> None: ...
    def profiled(self) -> int: ...
    def profile_number(self) -> int: ...


def run(
    command: Profile,
    ranks: Iterable[ProfiledRank],
    *,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> JsonObject:
    """Profile the ranks that the command names. Blocks until all have answered, or for its `timeout_s`.

    A rank that has not answered by then is told to end its profile.
    {"profiles": {rank: trace}, "failed": {rank: why}}. A trace is gzipped JSON in base64.
    """
    wanted = [rank for rank in ranks if not command.ranks or rank.rank in command.ranks]
    number = 1 + max((rank.profile_number() for rank in wanted), default=0)
    for rank in wanted:
        rank.ask_for_profile(number, command.first_step, command.steps)
    deadline_s = monotonic() + command.timeout_s
    while any(_waits(rank, number) for rank in wanted) and monotonic() < deadline_s:
        sleep(POLL_S)
    for rank in wanted:
        if _waits(rank, number):
            rank.call_off_profile()
    profiles: dict[str, str] = {}
    failed: dict[str, str] = {}
    left = MOST_BYTES
    for rank in wanted:
        why_not = _why_not(rank, number, command)
        path = trace_path(rank.profile_prefix, number)
        data = b"" if why_not else _read(path)
        if why_not or not data:
            failed[str(rank.rank)] = why_not or f"its trace {path} cannot be read"
        elif len(data) > left:
            failed[str(rank.rank)] = f"its trace of {len(data) >> 20} MiB is too large to send: {path}"
        else:
            left -= len(data)
            profiles[str(rank.rank)] = base64.b64encode(data).decode()
            with contextlib.suppress(OSError):
                os.unlink(path)
    return {"profiles": profiles, "failed": failed}


def _waits(rank: ProfiledRank, number: int) -> bool:
    return rank.code is None and abs(rank.profiled()) != number


def _why_not(rank: ProfiledRank, number: int, command: Profile) -> str:
    answered = rank.profiled()
    if answered == number:
        return ""
    if answered == -number:
        return "torch's profiler failed there. Perhaps the script runs its own"
    if rank.code is not None:
        return "it has ended"
    last = command.first_step + command.steps
    return f"it did not get to step {last} in {command.timeout_s:g} s, or it tells no steps"


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
