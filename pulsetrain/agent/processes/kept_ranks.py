"""Ranks whose processes outlive their attempt: they are woken, parked, and go on as ranks of the next one.

A process is kept only if its rank has said that it listens, and says in time that it is parked. Every other
one is killed. One that does not say in time that it goes on is killed too. So a process is never in two
attempts.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pulsetrain.core.readable import readable
from pulsetrain.protocol import rank_channel

LOOK_S = 0.05
NOT_RESTARTABLE = "its script does not use pulsetrain.restartable"


class Seated(Protocol):
    """A rank of one attempt."""

    rank: int
    local_rank: int
    pid: int
    code: int | None
    ended: threading.Event

    def end(self, code: int) -> None: ...


class Seat:
    """One process over its attempts: the agent's end of its channel, and which rank it is now."""

    def __init__(self, on_exit: Callable[[Seated, int], None]) -> None:
        self.channel, self.rank_end = rank_channel.pair()
        self._on_exit = on_exit
        self._listens = False
        self.rank: Seated | None = None

    def forked(self) -> None:
        """The process has its own end now."""
        self.rank_end.close()

    def exited(self, code: int) -> None:
        """The process has ended, as whichever rank it is."""
        if self.rank is not None:
            self._on_exit(self.rank, code)

    def listens(self) -> bool:
        """Whether the rank can be asked to go on in its process."""
        if not self._listens:
            packet = self.channel.receive(0.0)
            self._listens = packet is not None and packet[0].get("op") == rank_channel.LISTENING
        return self._listens

    def close(self) -> None:
        """Close the agent's end."""
        self.channel.close()


@dataclass(kw_only=True)
class Keeping:
    """How a request to keep ranks went, by rank: why each that was not kept was killed."""

    kept: dict[int, Seat] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)


def park(
    seats: Mapping[int, Seat], fresh: Collection[int], timeout_s: float, given_up: Callable[[], bool]
) -> Keeping:
    """Ask the ranks of these seats to end their attempt. Waits `timeout_s` at most, or until `given_up`.

    Those in `fresh` are not asked: they are at fault. The caller kills all that are refused.
    """
    result = Keeping()
    waiting: dict[int, Seat] = {}
    for rank, seat in seats.items():
        if rank in fresh:
            result.refused[rank] = "it is at fault"
        elif not seat.listens():
            result.refused[rank] = NOT_RESTARTABLE
        elif not seat.channel.send(rank_channel.ABORT):
            result.refused[rank] = "its process is gone"
        else:
            waiting[rank] = seat
    answers = _answers(waiting, timeout_s, given_up)
    for rank, seat in waiting.items():
        answer = answers.get(rank)
        if answer == rank_channel.PARKED:
            result.kept[rank] = seat
        elif answer == rank_channel.OUTSIDE:
            result.refused[rank] = "it was outside the function that can be called again"
        else:
            result.refused[rank] = f"it did not give up its attempt in {timeout_s:g} s"
    return result


def resumed(seats: Mapping[int, Seat], attempt: int, timeout_s: float) -> set[int]:
    """The ranks that say in time that they go on in `attempt`."""
    answers = _answers(seats, timeout_s, lambda: False, attempt=str(attempt))
    return {rank for rank, answer in answers.items() if answer == rank_channel.RESUMED}


def _answers(
    seats: Mapping[int, Seat], timeout_s: float, given_up: Callable[[], bool], attempt: str = ""
) -> dict[int, str]:
    """What each rank answers first, "" where it is gone."""
    answers: dict[int, str] = {}
    deadline_s = time.monotonic() + timeout_s
    while len(answers) < len(seats) and not given_up():
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            break
        waiting = {seat.channel.fileno(): rank for rank, seat in seats.items() if rank not in answers}
        for fd in readable(waiting, min(left_s, LOOK_S)):
            rank = waiting[fd]
            packet = seats[rank].channel.receive(0.0)
            of_attempt = packet is not None and packet[0].get("attempt", "") == attempt
            answers[rank] = str(packet[0]["op"]) if packet is not None and of_attempt else ""
    return answers


def resume(seat: Seat, environment: Mapping[str, str], files: Sequence[int]) -> bool:
    """Tell a parked rank to go on: with stdout, stderr, ring and arena. Returns False where it is gone."""
    return seat.channel.send(rank_channel.RESUME, files, env=dict(environment))


def kill(seats: Collection[Seat], send: Callable[[int, int], None], timeout_s: float) -> None:
    """Kill what is kept, and wait until it has ended."""
    ranks = [seat.rank for seat in seats if seat.rank is not None]
    for rank in ranks:
        if rank.code is None:
            send(rank.pid, signal.SIGKILL)
    deadline_s = time.monotonic() + timeout_s
    for rank in ranks:
        rank.ended.wait(max(0.0, deadline_s - time.monotonic()))
    for seat in seats:
        seat.close()
