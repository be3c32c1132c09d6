"""Decides, update by update, who computes: the root for all, or each replica for itself.

Of the replicas that share a device, the one with the lowest local rank is the root. It announces each update
before it computes it, in one of three ways:

- `COMPARES`: all compute, and compare digests of all that the update reads and writes. So does the first
  update of a group, each one of a set period, and any after which one of them is not known to be equal.
- `PUBLISHES`: the root computes, and publishes tensors and numbers. A sharer takes them over if its own
  parameters, gradients and numbers had the root's digests before. Else it computes, and nobody squashes more.
  Of large tensors these digests read a part, another one in each update. Who has written parameters by torch
  since the last update reads them whole.
- `COMPUTES`: each for itself.

The root measures what an update takes, and what it takes to hand it over. Where that is more, all compute.

Nobody waits longer than `WAIT_S`, nor for a process that is gone. Who has waited in vain computes, and is not
taken as equal until the next comparison. So an update never has another result than without squashing, as
long as the optimizer's own state is written by nothing but the optimizer, and replicas are what they seem.

This is the squashing of Singularity (arXiv 2202.07848, section 5.2.2), with its validation.
"""

from __future__ import annotations

import json
import os
import time
import weakref
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import TypeVar

import torch

from pulsetrain.collectors import squash_layout as layout
from pulsetrain.collectors.rank.phases import RankState
from pulsetrain.collectors.rank.squash import contents
from pulsetrain.collectors.rank.squash.cell import Cell, Page
from pulsetrain.collectors.rank.squash.contents import Contents
from pulsetrain.collectors.rank.squash.handover import Handover, SharedPages
from pulsetrain.collectors.rank.squash.weighing import Weighing
from pulsetrain.collectors.squash_layout import COMPARES, COMPUTES, PUBLISHES

WAIT_S = 10.0
POLL_S, LONGEST_POLL_S = 0.0005, 0.005  # longer waits are looked at less often: the root needs the processor
LOOK_S = 0.05  # between two looks whether the root lives
PATIENCE = 5  # updates that a root compares in vain, or a sharer waits for in vain, before it gives up

T = TypeVar("T")


class Replica:
    """One optimizer of this rank. `update` counts its updates from the start of the process."""

    def __init__(self, index: int) -> None:
        self.index, self.update = index, 0
        self.group = self.root = -1
        self.cell: Cell | None = None
        self.handover: Handover | None = None
        self.in_vain = 0
        self.left_in = -1  # the group in which this optimizer's updates are not worth handing over
        self.marks: object = None  # of parameters, when this rank knew them last
        self.weighing = Weighing()

    def guards(self, optimizer: torch.optim.Optimizer, now: Contents) -> tuple[list[int], bool]:
        """Digests from before an update that is handed over, and whether they are of whole tensors."""
        whole = self.marks != contents.marks(optimizer)
        return self.digests(now, whole=whole), whole

    def digests(self, now: Contents, *, whole: bool) -> list[int]:
        """Digests of what an update begins with: of whole tensors, or of a part of large ones."""
        if whole:
            return contents.digests(now.inputs(), now.numbers)
        return contents.guards(now.inputs(), now.numbers, self.update)

    def keep(self, local_rank: int) -> None:
        """Let the tensors depend on no buffer. The next update may be taken over all the same."""
        if self.handover is not None and self.cell is not None:
            self.handover.keep()
            self.cell.words[layout.C_SHOWS + local_rank] = 0

    def leave(self, local_rank: int) -> None:
        """Depend on no root any more."""
        if self.handover is not None:
            self.handover.close()
        if self.cell is not None:
            self.cell.words[layout.C_EQUAL_IN + local_rank] = 0
            self.cell.words[layout.C_SHOWS + local_rank] = 0
            if self.root == local_rank:
                self.cell.words[layout.C_GROUP] = 0
        self.cell = self.handover = None
        self.group = self.root = -1
        self.in_vain = 0
        self.weighing = Weighing()


class Squasher:
    """The updates of one rank. Create it on the main thread.

    `hand_over` makes the way to the tensors of a root. `stopped`: it squashes no more, for good.
    """

    def __init__(
        self,
        state: RankState,
        page: Page,
        rank: int,
        *,
        hand_over: Callable[[int, int], Handover] = SharedPages,
        wait_s: float = WAIT_S,
    ) -> None:
        self._state, self._page, self._rank = state, page, rank
        self._hand_over, self._wait_s = hand_over, wait_s
        self._me, self._main = page.local_rank, get_ident()
        self.stopped = False
        self._away_ns = 0  # in waits for a root, and for the device behind them
        self._replicas: weakref.WeakKeyDictionary[torch.optim.Optimizer, Replica] = (
            weakref.WeakKeyDictionary()
        )
        self._made: list[Replica] = []  # those of optimizers that are gone too: parameters may lie in theirs

    def begin_again(self) -> None:
        """A new attempt begins in this process. Updates count from 0."""
        for replica in self._made:
            replica.leave(self._me)
        self._replicas, self._made = weakref.WeakKeyDictionary(), []

    def before_fork(self) -> None:
        """This process forks. The child shows no buffer that the root fills again.

        Only the main thread can see to that: another one could do it in the middle of an update.
        """
        if get_ident() == self._main:
            for replica in self._made:
                replica.keep(self._me)

    def step(self, optimizer: torch.optim.Optimizer, compute: Callable[[], T], *, plain: bool) -> T | None:
        """Make one update. `compute` does it here. It must be computed here where it is not `plain`."""
        replica = self._replicas.get(optimizer)
        if replica is None:
            replica = self._replicas[optimizer] = Replica(len(self._made))
            self._made.append(replica)
        replica.update += 1
        if not self._may_squash(replica, optimizer, plain=plain):
            if replica.cell is not None:
                replica.leave(self._me)
            return compute()
        if replica.root == self._me:
            return self._as_root(replica, optimizer, compute)
        return self._as_sharer(replica, optimizer, compute)

    def _may_squash(self, replica: Replica, optimizer: torch.optim.Optimizer, *, plain: bool) -> bool:
        """Whether this update has a root, which the replica then knows."""
        words = self._page.words
        mask, group = words[layout.W_MASK], words[layout.W_GROUP]
        if not mask or self.stopped or replica.index >= layout.MAX_OPTIMIZERS or replica.left_in == group:
            return False
        if get_ident() != self._main or not plain:
            return False
        why = contents.refusal(optimizer)
        if why:
            self._stop(None, why)
            return False
        if replica.group != group or replica.cell is None:
            replica.leave(self._me)
            replica.group, replica.root = group, (mask & -mask).bit_length() - 1
            replica.cell = self._page.cell(replica.root, replica.index)
            replica.handover = self._hand_over(self._page.fd, replica.cell.region_at)
        self.stopped = bool(replica.cell.words[layout.C_STOPPED])
        if replica.cell.words[layout.C_LEFT] == group:
            replica.left_in = group
        return not self.stopped and replica.left_in != group

    # -- the root -----------------------------------------------------------------------------------------

    def _as_root(
        self, replica: Replica, optimizer: torch.optim.Optimizer, compute: Callable[[], T]
    ) -> T | None:
        cell, handover = replica.cell, replica.handover
        assert cell is not None
        assert handover is not None
        words = cell.words
        times = [time.perf_counter_ns()]
        mode, before = self._announce(replica, cell, optimizer)
        times.append(time.perf_counter_ns())
        try:
            result = compute()
        except BaseException:
            words[layout.C_MODE] = COMPUTES
            raise
        if mode == COMPUTES:
            return result
        times.append(time.perf_counter_ns())
        try:
            now = contents.read(optimizer)
            replica.marks = contents.marks(optimizer)
            if mode == COMPARES:
                after = contents.digests(now.everything(), now.numbers)
                cell.write_digests(after, after=True)
                words[layout.C_COMPARED] = replica.update
                self._page.words[layout.W_COMPARED] += 1
                self._check_gradients(cell, optimizer, before, after)
            else:
                self._publish(replica, cell, handover, now)
                self._weigh(replica, cell, optimizer, [*times, time.perf_counter_ns()])
        except Exception:  # noqa: BLE001 - the update is done: the others compute theirs
            words[layout.C_MODE] = COMPUTES
            self._state.fault()
        return result

    def _announce(
        self, replica: Replica, cell: Cell, optimizer: torch.optim.Optimizer
    ) -> tuple[int, list[int]]:
        """Say what the root does in this update. Returns it, and digests from before it."""
        words = cell.words
        if words[layout.C_GROUP] != replica.group:
            words[layout.C_PID] = os.getpid()
            words[layout.C_ANNOUNCED] = words[layout.C_PUBLISHED] = words[layout.C_COMPARED] = -1
            words[layout.C_GROUP] = replica.group
        mode = self._mode(replica, cell)
        before: list[int] = []
        try:
            if mode != COMPUTES:
                now = contents.read(optimizer)
                if mode == COMPARES:
                    before = contents.digests(now.everything(), now.numbers)
                else:
                    before, words[layout.C_WHOLE] = replica.guards(optimizer, now)
                cell.write_digests(before, after=False)
        except Exception:  # noqa: BLE001 - the script must not see our faults
            self._state.fault()
            mode = COMPUTES
        words[layout.C_MODE] = mode
        words[layout.C_ANNOUNCED] = replica.update
        return mode, before

    def _mode(self, replica: Replica, cell: Cell) -> int:
        words = cell.words
        mask = self._page.words[layout.W_MASK]
        sharers = self._sharers()
        equal = all(words[layout.C_EQUAL_IN + r] == replica.group for r in sharers)
        free = all(
            not words[layout.C_SHOWS + r]
            or (mask >> r & 1 and words[layout.C_TAKEN + r] == words[layout.C_PUBLISHED])
            for r in range(layout.MAX_RANKS)
        )
        if equal and free:
            replica.in_vain = 0
            every = max(1, self._page.words[layout.W_EVERY])
            return PUBLISHES if replica.update % every else COMPARES
        replica.in_vain += 1
        if replica.in_vain > PATIENCE:
            self._stop(cell, "a rank that shares the device does not take part")
            return COMPUTES
        return COMPARES

    def _publish(self, replica: Replica, cell: Cell, handover: Handover, now: Contents) -> None:
        words = cell.words
        buffer = 1 - words[layout.C_BUFFER]
        handover.publish(now, buffer)
        words[layout.C_LAYOUT] = now.layout
        words[layout.C_NUMBERS] = len(now.numbers)
        words[layout.C_BUFFER] = buffer
        words[layout.C_PUBLISHED] = replica.update

    def _sharers(self) -> list[int]:
        mask = self._page.words[layout.W_MASK]
        return [r for r in range(layout.MAX_RANKS) if mask >> r & 1 and r != self._me]

    def _weigh(
        self, replica: Replica, cell: Cell, optimizer: torch.optim.Optimizer, times: Sequence[int]
    ) -> None:
        """Have all compute where that takes less. `times`: begin, announced, computed, published, in ns."""
        began, announced, computed, published = times
        words, sharers = cell.words, self._sharers()
        took = all(words[layout.C_TAKEN + r] == replica.update - 1 for r in sharers)
        if not took or not self._page.words[layout.W_WEIGHS]:
            return
        spent = announced - began + published - computed
        spent += sum(words[layout.C_SPENT + r] for r in sharers)
        left_out = (computed - announced) * len(sharers)
        if replica.weighing.add(left_out_ns=left_out, spent_ns=spent):
            name, longer_ms = type(optimizer).__name__, -replica.weighing.saved_ns / 1e6
            why = f"{name}: handing over takes {longer_ms:.2f} ms longer than {len(sharers)} updates"
            self._page.leave_out(json.dumps({"why": why, "rank": self._rank, "step": self._state.step}))
            words[layout.C_LEFT] = replica.group

    # -- the sharers --------------------------------------------------------------------------------------

    def _as_sharer(
        self, replica: Replica, optimizer: torch.optim.Optimizer, compute: Callable[[], T]
    ) -> T | None:
        cell, handover = replica.cell, replica.handover
        assert cell is not None
        assert handover is not None
        words = cell.words
        mode = COMPUTES
        began_ns, self._away_ns = time.perf_counter_ns(), 0
        before: list[int] = []
        if words[layout.C_GROUP] == replica.group:
            try:
                mode, before = self._hear(replica, cell, optimizer)
            except Exception:  # noqa: BLE001 - the script must not see our faults
                self._state.fault()
        if mode == PUBLISHES and self._take(replica, cell, handover, optimizer):
            words[layout.C_SPENT + self._me] = time.perf_counter_ns() - began_ns - self._away_ns
            words[layout.C_TAKEN + self._me] = replica.update
            return None
        words[layout.C_EQUAL_IN + self._me] = 0
        replica.keep(self._me)
        self._page.words[layout.W_ALONE] += mode != COMPARES
        result = compute()
        if mode == COMPARES:
            try:
                self._compare(replica, cell, optimizer, before)
            except Exception:  # noqa: BLE001 - as above
                self._state.fault()
        return result

    def _hear(self, replica: Replica, cell: Cell, optimizer: torch.optim.Optimizer) -> tuple[int, list[int]]:
        """What to do in this update, and digests from before it, where they will be compared."""
        words, update = cell.words, replica.update
        now = contents.read(optimizer)
        was_equal = words[layout.C_EQUAL_IN + self._me] == replica.group
        inputs, whole = replica.guards(optimizer, now) if was_equal else ([], False)

        def announced() -> bool:
            if words[layout.C_ANNOUNCED] < update:
                return False
            return words[layout.C_MODE] != PUBLISHES or words[layout.C_PUBLISHED] >= update

        if not self._wait(cell, announced):
            replica.in_vain += 1
            if replica.in_vain > PATIENCE:
                self._stop(cell, "the root is late")
            return COMPUTES, []
        replica.in_vain = 0
        if words[layout.C_ANNOUNCED] != update or words[layout.C_GROUP] != replica.group:
            return COMPUTES, []
        if words[layout.C_MODE] == COMPARES:
            return COMPARES, contents.digests(now.everything(), now.numbers)
        published = words[layout.C_MODE] == PUBLISHES and words[layout.C_PUBLISHED] == update
        if not published or not was_equal or words[layout.C_LAYOUT] != now.layout:
            return COMPUTES, []
        roots_whole = bool(words[layout.C_WHOLE])
        if whole != roots_whole:
            inputs = replica.digests(now, whole=roots_whole)
        other = contents.first_difference(inputs, cell.digests(after=False), now.inputs())
        if other:
            self._differ(replica, cell, f"{other} before the update")
            return COMPUTES, []
        if whole and not roots_whole:
            return COMPUTES, []  # only this rank has written parameters: the next update is compared
        return PUBLISHES, []

    def _take(
        self, replica: Replica, cell: Cell, handover: Handover, optimizer: torch.optim.Optimizer
    ) -> bool:
        """Take over what the root has computed. Returns False where nothing could be changed."""
        words = cell.words
        words[layout.C_SHOWS + self._me] = 1
        try:
            numbers = handover.take(contents.read(optimizer), words[layout.C_BUFFER], words[layout.C_NUMBERS])
        except OSError:
            self._state.fault()
            return False
        contents.set_numbers(optimizer, numbers)
        replica.marks = contents.marks(optimizer)
        self._page.words[layout.W_TAKEN_OVER] += 1
        return True

    def _compare(
        self, replica: Replica, cell: Cell, optimizer: torch.optim.Optimizer, before: list[int]
    ) -> None:
        """Compare an update that all have computed."""
        words, now = cell.words, contents.read(optimizer)
        after = contents.digests(now.everything(), now.numbers)
        replica.marks = contents.marks(optimizer)
        if self._check_gradients(cell, optimizer, before, after):
            return
        if not self._wait(cell, lambda: words[layout.C_COMPARED] >= replica.update):
            return
        if words[layout.C_COMPARED] != replica.update:
            return
        self._page.words[layout.W_COMPARED] += 1
        theirs = cell.digests(after=False)
        named = now.everything() if len(before) == len(after) else []
        other = contents.first_difference(before, theirs, named)
        when = "before"
        if not other:
            other, when = (
                contents.first_difference(after, cell.digests(after=True), now.everything()),
                "after",
            )
        if other:
            self._differ(replica, cell, f"{other} {when} the update")
        else:
            words[layout.C_EQUAL_IN + self._me] = replica.group

    def _check_gradients(
        self, cell: Cell, optimizer: torch.optim.Optimizer, before: list[int], after: list[int]
    ) -> bool:
        """Squash no more where the update has changed gradients. Sharers would not get what it wrote."""
        gradients = len(contents.read(optimizer).gradients)
        wrote = contents.wrote_gradients(before, after, gradients)
        if wrote:
            self._stop(cell, f"{type(optimizer).__name__} writes into gradients")
        return wrote

    def _differ(self, replica: Replica, cell: Cell, what: str) -> None:
        root = self._rank - self._me + replica.root
        self._stop(cell, f"rank {self._rank} differs from rank {root} in {what}", root=root, tensor=what)

    def _stop(self, cell: Cell | None, why: str, **more: object) -> None:
        """Squash no more, nor let any other one of the group do so."""
        said = {"why": why, "rank": self._rank, "step": self._state.step, **more}
        self._page.stop(json.dumps(said))
        self.stopped = True
        if cell is not None:
            cell.words[layout.C_STOPPED] = 1

    def _wait(self, cell: Cell, done: Callable[[], bool]) -> bool:
        """Wait for the root without the device. Returns False where it is late or gone."""
        if done():
            return True
        turns, began, began_ns = self._state.turns, time.monotonic(), time.perf_counter_ns()
        processor = self._state.processor
        if turns is not None:
            turns.leave()
        looked = began
        if processor is not None:
            processor.enter_wait(time.perf_counter_ns())
        try:
            while not done():
                now = time.monotonic()
                if now - began >= self._wait_s or cell.words[layout.C_STOPPED]:
                    return done()
                if now - looked >= LOOK_S:
                    looked = now
                    if not cell.root_lives:
                        return done()
                time.sleep(min(LONGEST_POLL_S, max(POLL_S, (now - began) / 20)))
            return True
        finally:
            if processor is not None:
                processor.leave_wait(time.perf_counter_ns())
            waited = int((time.monotonic() - began) * 1e9)
            self._state.blocked += waited
            self._page.words[layout.W_WAITED] += waited
            if turns is not None:
                turns.enter()
            self._away_ns += time.perf_counter_ns() - began_ns
