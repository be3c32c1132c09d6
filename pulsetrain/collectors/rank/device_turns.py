"""Ranks that share a device take turns on it: one computes, the others wait for it or for their peers.

A rank takes its device before it computes and gives it back when it begins to wait for other ranks. So who
waits for a peer never keeps that peer from computing, and the program does what it does on a device of its
own (replica splicing of Singularity, arXiv 2202.07848, section 5.2).

A device is one byte of a file that the agent owns and its ranks inherit. Who locks the byte has the device.
The kernel gives a lock to who waits longest, and takes it back when a process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from threading import get_ident
from time import perf_counter_ns, sleep
from typing import Literal, Protocol

from pulsetrain.collectors.layout import (
    PACK_OPEN,
    STACK_END,
    W_DEVICE,
    W_DEVICE_FOLLOWS,
    W_DEVICE_LENT,
    W_DEVICE_ORDER,
    W_DEVICE_REFUSED,
    W_DEVICE_TURNS,
    W_DEVICE_WAITED,
    span_context,
    span_head,
)
from pulsetrain.collectors.rank.phases import RankState
from pulsetrain.records.schema import CATEGORIES

PHASE = "device_wait"
LANE = "device"
SHOWN_NS = 100_000  # shorter waits for a device are counted, and not recorded one by one
POLL_NS = 1_000_000  # a turn lasts at least so long where a rank asks in vain whether others are done
LETS_PASS_S = 0.0005  # who was woken needs a moment to lock a device that is free again


@dataclass(frozen=True)
class Act:
    """What a rank does with the lock of a device. `take` waits until the device is free."""

    what: Literal["take", "give"]
    device: int


class Locks(Protocol):
    """The locks of a node's devices, as one rank has them."""

    def take(self, device: int) -> None: ...
    def give(self, device: int) -> None: ...


class Order(Protocol):
    """What the agent wants of the rank: `words` at `W_DEVICE` and `W_DEVICE_ORDER`."""

    def __getitem__(self, word: int, /) -> int: ...


def taking(order: Order) -> Generator[Act, None, int]:
    """What a rank does before it computes, act by act. Returns the device that it then has, -1 for none.

    The agent may give it another device while it waits for one. Then it gives back what it got.

    >>> list(taking({W_DEVICE: 3, W_DEVICE_ORDER: 1}))
    [Act(what='take', device=2)]
    """
    while True:
        wanted = order[W_DEVICE]
        if not wanted:
            return -1
        yield Act("take", wanted - 1)
        if order[W_DEVICE] == wanted:
            return wanted - 1
        yield Act("give", wanted - 1)


class FileLocks:
    """A lock is one byte of a file. It belongs to the process, and children do not inherit it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def take(self, device: int) -> None:
        """Lock the device. Returns once nobody else has it. Who waits longest is the next."""
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, device)

    def give(self, device: int) -> None:
        """Unlock the device."""
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, device)


class DeviceTurns:
    """The turns of one rank's main thread. Create it on that thread. Nothing here raises.

    `held` is the device that it has, -1 for none, and `turn` the number of the turn. `on_take` is called
    with each turn on a shared device. Waits nest: only the outermost one gives the device away.
    """

    def __init__(self, state: RankState, locks: Locks, pause: Callable[[float], None] = sleep) -> None:
        self._state, self._locks, self._pause = state, locks, pause
        self._taken = 0
        self._main = get_ident()
        self._depth = 0
        self._changing = threading.Lock()
        self.held = -1
        self.turn = 0
        self.on_take: Callable[[], None] | None = None
        other = CATEGORIES.index("other")
        name = state.ring.intern(PHASE)
        self._head, self._lane = span_head(name, other), state.ring.intern(LANE)

    @property
    def words(self) -> memoryview[int]:
        """The words of the ring."""
        return self._state.words

    def leave(self) -> None:
        """The main thread begins to wait for others. Gives the device away."""
        if get_ident() != self._main:
            return
        self._depth += 1
        if self._depth == 1 and self.held >= 0:
            self.give()

    def enter(self) -> None:
        """The wait is over. Returns once the rank may compute."""
        if get_ident() != self._main or not self._depth:
            return
        self._depth -= 1
        words = self._state.words
        if self._depth == 0 and words[W_DEVICE] and not words[W_DEVICE_REFUSED]:
            self.take()

    def let_pass(self) -> None:
        """The main thread has asked in vain whether others are done. Who waits for the device gets it."""
        if get_ident() != self._main or self._depth or self._state.words[W_DEVICE_REFUSED]:
            return
        if perf_counter_ns() - self._taken < POLL_NS:
            return
        self.leave()
        try:
            self._pause(LETS_PASS_S)
        finally:  # a signal handler of the script may raise
            self.enter()

    def begin_again(self) -> None:
        """A new attempt begins in this process. A wait that the last one left open is over."""
        self._depth = 0

    def refuse(self) -> None:
        """The rank has process groups that work on a device. From now on it waits for no turn.

        Its waits are not the host's to see, so it could keep the device from ranks that it waits for.
        """
        self._state.words[W_DEVICE_REFUSED] = 1
        self.give()

    def take(self) -> None:
        """Take the device that the agent has chosen, if it has chosen one."""
        words, began = self._state.words, perf_counter_ns()
        at, processor = self._state.top, self._state.processor
        if at < STACK_END:
            PACK_OPEN(self._state.ring.memory, at, self._head, began)
        if processor is not None:
            processor.enter_wait(began)
        try:
            self._take()
        except OSError:  # the kernel has no memory for a lock: the rank computes all the same
            self._state.fault()
        finally:  # a signal handler of the script may raise
            now = perf_counter_ns()
            if processor is not None:
                processor.leave_wait(now)
            if at < STACK_END:
                words[at >> 3] = 0
        self._taken = now
        if self.on_take is not None and self.held >= 0:
            self.on_take()
        self._waited(began, now)

    def _take(self) -> None:
        words = self._state.words
        acts = taking(words)
        order = words[W_DEVICE_ORDER]
        while True:
            try:
                act = next(acts)
            except StopIteration as end:
                with self._changing:
                    self.held, self.turn = end.value, self.turn + 1
                words[W_DEVICE_FOLLOWS] = order
                return
            if act.what == "take":
                self._lock(act.device)
            else:
                self._locks.give(act.device)
                order = words[W_DEVICE_ORDER]

    def _lock(self, device: int) -> None:
        try:
            self._locks.take(device)
        except BaseException:
            self._locks.give(device)  # a signal handler raised: it may have been locked before that
            raise

    def _waited(self, began: int, now: int) -> None:
        """Count the wait. It is no work of the rank's own."""
        state, waited = self._state, now - began
        state.blocked += waited
        state.words[W_DEVICE_TURNS] += 1
        state.words[W_DEVICE_WAITED] += waited
        if waited >= SHOWN_NS:
            state.ring.span(
                self._head | state.parent,
                span_context(state.step, -1, self._lane),
                began,
                now,
                blocked=waited,
            )

    def give(self, *, lent: bool = False) -> None:
        """Give the device away. `lent`: another thread does so, because the main thread stands still."""
        words = self._state.words
        with self._changing:
            held, self.held = self.held, -1
            if held < 0:
                return
            try:
                self._locks.give(held)
            except OSError:
                self._state.fault()
        if lent:
            words[W_DEVICE_LENT] += 1
        else:
            words[W_DEVICE_FOLLOWS] = words[W_DEVICE_ORDER]
