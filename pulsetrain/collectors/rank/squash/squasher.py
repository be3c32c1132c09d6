"""Decides, update by update, who computes: the root for all, or each replica for itself.

Of the replicas that share a device, the one with the lowest local rank is the root. It announces each update
before it computes it, in one of three ways:

- `COMPARES`: all compute, and compare digests of all that the update reads and writes. So does the first
  update of a group, each one of a set period, and any after which one of them is not known to be equal.
- `PUBLISHES`: the root computes, and publishes tensors and numbers. A sharer takes them over if its own
  parameters, gradients and numbers had the root's digests before. Else it computes, and nobody squashes more.
  Of large tensors these digests read a part, another one in each update. Who has written parameters by torch
  since the last update reads them whole.
- `SHARES`: the root computes in pages that all show. Before that it asks, and each sharer answers whether it
  shows these pages, has written none of them, and has the same gradients and numbers. All of them are in
  their own updates until it is done, so nobody sees new parameters early. If one says no, or nothing in time,
  the root publishes. Who has said yes waits as long as the root lives.
- `COMPUTES`: each for itself.

The root measures what an update takes, and what it takes to hand it over. Where that is more, all compute.

Nobody waits longer than `WAIT_S`, except in an update that all share, nor for a process that is gone. Who has
waited in vain computes, and is not taken as equal until the next comparison. A root that ends inside an
update that all share leaves half of it. Then sharers raise `UpdateLostError`: without the root the attempt is
over. Until the script has loaded its parameters anew, they make no update and save nothing. So an update
never has another result than without squashing, as long as the optimizer's own state is written by nothing
but the optimizer, and replicas are what they seem.

This is the squashing of Singularity (arXiv 2202.07848, section 5.2.2), with its validation.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import weakref
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import TypeVar

import torch

from pulsetrain.collectors import squash_layout as layout
from pulsetrain.collectors.rank.lost_update import UpdateLostError
from pulsetrain.collectors.rank.phases import RankState
from pulsetrain.collectors.rank.squash import contents
from pulsetrain.collectors.rank.squash.bell import Bell
from pulsetrain.collectors.rank.squash.cell import Cell, Page, lives
from pulsetrain.collectors.rank.squash.contents import Contents
from pulsetrain.collectors.rank.squash.handover import Handover, SharedPages
from pulsetrain.collectors.rank.squash.weighing import Weighing
from pulsetrain.collectors.squash_layout import COMPARES, COMPUTES, PUBLISHES, SHARES

WAIT_S = 10.0
LOOK_S = 0.05  # between two looks whether the root lives
PATIENCE = 5  # updates that a root compares in vain, or a sharer waits for in vain, before it gives up
WORTH_UPDATES = 8  # until the next comparison, for which each rank gets pages of its own again
LONGEST_REST = 1024  # updates until the root's tensors move again, where that was in vain again and again

T = TypeVar("T")


class Sharing:
    """What a root knows of updates in place. `adopted`: its tensors lie in the buffer.

    `steady` is the signature of contents of which an update replaced no tensor and made none.
    """

    def __init__(self) -> None:
        self.adopted = False
        self.steady = -1
        self._in_vain = self._rest = 0

    def ends(self, *, in_vain: bool) -> None:
        """The tensors are the root's own again. The next time comes later if it was `in_vain`."""
        if self.adopted and in_vain:
            self._in_vain += 1
            self._rest = min(1 << self._in_vain, LONGEST_REST)
        self.adopted = False

    def succeeded(self) -> None:
        """All have shared an update."""
        self._in_vain = 0

    def may_begin(self) -> bool:
        """Whether the tensors may move with this update. Counts it."""
        self._rest -= self._rest > 0
        return not self._rest and not self.adopted


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
        self.sharing = Sharing()

    @property
    def yes(self) -> int:
        """The answer that this update may be computed in the pages of all."""
        return layout.answer(self.group, self.update, yes=True)

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
        self.weighing, self.sharing = Weighing(), Sharing()


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
        self._away_ns = 0  # in waits for others, and for the device behind them
        self._raised: BaseException | None = None  # by a signal handler of the script, in a wait
        self._replicas: weakref.WeakKeyDictionary[torch.optim.Optimizer, Replica] = (
            weakref.WeakKeyDictionary()
        )
        self._made: list[Replica] = []  # those of optimizers that are gone too: parameters may lie in theirs
        self._lost: list[tuple[torch.optim.Optimizer, object]] = []  # and marks of what is half done
        state.update_lost = self._has_lost

    def begin_again(self) -> None:
        """A new attempt begins in this process. Updates count from 0."""
        for replica in self._made:
            replica.leave(self._me)
        self._replicas, self._made = weakref.WeakKeyDictionary(), []
        self._lost = []

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
        if self._has_lost():
            raise UpdateLostError("an earlier update, which another rank computed for this one, is half done")
        if not self._may_squash(replica, optimizer, plain=plain):
            if replica.cell is not None:
                replica.leave(self._me)
            return compute()
        self._raised = None
        as_member = self._as_root if replica.root == self._me else self._as_sharer
        result = as_member(replica, optimizer, compute)
        if self._raised is not None:
            raise self._raised
        return result

    def _has_lost(self) -> bool:
        """Whether parameters are those of half an update. They are not once the script has written them."""
        self._lost = [(each, marks) for each, marks in self._lost if contents.marks(each) == marks]
        return bool(self._lost)

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
        times, self._away_ns = [time.perf_counter_ns()], 0
        mode = COMPUTES
        try:
            mode, before, place, was = self._decide(replica, cell, handover, optimizer)
            self._announce(replica, cell, mode)
            times.append(time.perf_counter_ns())
            with place:
                result = compute()
        except BaseException:
            self._fail(replica, cell, mode)
            raise
        if mode == COMPUTES:
            return result
        times.append(time.perf_counter_ns())
        try:
            now = contents.read(optimizer)
            replica.marks = contents.marks(optimizer)
            same = was is not None and was.same_tensors(now)
            replica.sharing.steady = was.signature if same and was is not None else -1
            if mode == SHARES:
                self._share(replica, cell, handover, now, same=same)
                self._weigh(replica, cell, optimizer, [*times, time.perf_counter_ns()])
            elif mode == COMPARES:
                after = contents.digests(now.everything(), now.numbers)
                cell.write_digests(after, after=True)
                words[layout.C_COMPARED] = replica.update
                cell.to_sharers.ring()
                self._page.words[layout.W_COMPARED] += 1
                self._check_gradients(cell, optimizer, before, after)
            else:
                self._publish(replica, cell, handover, now)
                self._weigh(replica, cell, optimizer, [*times, time.perf_counter_ns()])
        except BaseException as error:
            self._fail(replica, cell, mode)
            if not isinstance(error, Exception):
                raise
            self._state.fault()
        return result

    def _announce(self, replica: Replica, cell: Cell, mode: int) -> None:
        """Say what the root does in this update."""
        words = cell.words
        if mode == SHARES:
            words[layout.C_SHARED] = replica.yes
        words[layout.C_MODE] = mode
        words[layout.C_ANNOUNCED] = replica.update
        if mode in (COMPUTES, COMPARES):  # else the others wait for more
            cell.to_sharers.ring()

    def _fail(self, replica: Replica, cell: Cell, mode: int) -> None:
        """Others get nothing from this update. They compute theirs, unless it was made in their pages."""
        if mode == SHARES:
            cell.words[layout.C_BROKEN] = replica.yes
        self._announce(replica, cell, COMPUTES)

    def _decide(
        self, replica: Replica, cell: Cell, handover: Handover, optimizer: torch.optim.Optimizer
    ) -> tuple[int, list[int], contextlib.AbstractContextManager[None], Contents | None]:
        """Decide what the root does in this update, and write digests from before it.

        Returns that, these digests, where to compute the update, and what there is before it.
        """
        words = cell.words
        if words[layout.C_GROUP] != replica.group:
            words[layout.C_PID] = os.getpid()
            words[layout.C_ANNOUNCED] = words[layout.C_PUBLISHED] = words[layout.C_COMPARED] = -1
            words[layout.C_ASKED], words[layout.C_ADOPTED] = -1, 0
            words[layout.C_GROUP] = replica.group
        mode = self._mode(replica, cell)
        before: list[int] = []
        place: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        now: Contents | None = None
        try:
            if mode != COMPUTES:
                now = contents.read(optimizer)
                whole = replica.marks != contents.marks(optimizer)
                shows = mode == PUBLISHES and replica.sharing.adopted and handover.shows_all(now)
                whole |= shows and handover.is_written()
                if shows and not whole and self._all_agree(replica, cell, now):
                    mode, place = SHARES, handover.in_place(now)
                else:
                    replica.sharing.ends(in_vain=mode == PUBLISHES)
                    words[layout.C_ADOPTED] = 0
            if mode == COMPARES and now is not None:
                before = contents.digests(now.everything(), now.numbers)
                cell.write_digests(before, after=False)
            elif mode == PUBLISHES and now is not None:
                before, words[layout.C_WHOLE] = replica.digests(now, whole=whole), whole
                cell.write_digests(before, after=False)
        except Exception:  # noqa: BLE001 - the script must not see our faults
            self._state.fault()
            mode, place = COMPUTES, contextlib.nullcontext()
        return mode, before, place, now

    def _all_agree(self, replica: Replica, cell: Cell, now: Contents) -> bool:
        """Whether all show the buffer, and would compute the same from them. Waits for answers."""
        words, sharers = cell.words, self._sharers()
        showing = [r for r in range(layout.MAX_RANKS) if words[layout.C_SHOWS + r]]
        if replica.sharing.steady != now.signature or not sharers or not set(showing) <= set(sharers):
            return False
        cell.write_digests(contents.guards(now.gradients, now.numbers, replica.update), after=False)
        words[layout.C_ASKED] = replica.update
        cell.to_sharers.ring()
        yes, no = replica.yes, layout.answer(replica.group, replica.update, yes=False)
        answers = [layout.C_ANSWER + r for r in sharers]

        def left() -> bool:
            if self._page.words[layout.W_GROUP] != replica.group:
                return True
            return any(words[layout.C_EQUAL_IN + r] != replica.group for r in sharers)

        def answered() -> bool:
            said = [words[at] for at in answers]
            return no in said or all(word == yes for word in said) or left()

        def live() -> bool:
            return all(lives(words[layout.C_SHARER_PID + r]) for r in sharers)

        self._wait(cell, answered, bell=cell.to_root, live=live)
        return all(words[at] == yes for at in answers)

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
        cell.to_sharers.ring()
        if self._may_adopt(replica, cell):
            try:
                handover.take(now, buffer, 0)
            except OSError:
                self._state.fault()
            else:
                replica.sharing.adopted = True
                words[layout.C_ADOPTED] = 1
            replica.marks = contents.marks_of(now)

    def _may_adopt(self, replica: Replica, cell: Cell) -> bool:
        """Whether the next updates are likely to be made in place."""
        every = max(1, self._page.words[layout.W_EVERY])
        if cell.words[layout.C_WHOLE] or replica.sharing.steady < 0:
            return False
        return every - replica.update % every > WORTH_UPDATES and replica.sharing.may_begin()

    def _share(self, replica: Replica, cell: Cell, handover: Handover, now: Contents, *, same: bool) -> None:
        """Say that the update in place is done."""
        words = cell.words
        if not same:
            raise UpdateLostError("the update has replaced tensors, as none like it did before")
        handover.set_numbers(now.numbers)
        replica.sharing.succeeded()
        words[layout.C_NUMBERS] = len(now.numbers)
        words[layout.C_PUBLISHED] = replica.update
        words[layout.C_SHARE_DONE] = replica.yes
        cell.to_sharers.ring()

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
        spent = announced - began + published - computed - self._away_ns
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
                mode, before = self._hear(replica, cell, handover, optimizer)
            except UpdateLostError:
                words[layout.C_EQUAL_IN + self._me] = 0
                self._lost.append((optimizer, contents.marks(optimizer)))
                raise
            except Exception:  # noqa: BLE001 - the script must not see our faults
                self._state.fault()
        if mode in (PUBLISHES, SHARES) and self._take(replica, cell, handover, optimizer, mode):
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

    def _hear(
        self, replica: Replica, cell: Cell, handover: Handover, optimizer: torch.optim.Optimizer
    ) -> tuple[int, list[int]]:
        """What to do in this update, and digests from before it, where they will be compared."""
        words, update = cell.words, replica.update
        now = contents.read(optimizer)
        was_equal = words[layout.C_EQUAL_IN + self._me] == replica.group
        whole = replica.marks != contents.marks(optimizer)
        shows = was_equal and bool(words[layout.C_ADOPTED]) and handover.shows_all(now)
        whole |= shows and handover.is_written()
        asked = _Asked(cell, replica.group, update, self._me)
        if shows and not whole:
            asked.would_say = contents.guards(now.gradients, now.numbers, update)
        inputs = replica.digests(now, whole=whole) if was_equal and asked.would_say is None else []

        def announced() -> bool:
            if words[layout.C_ANNOUNCED] < update:
                asked.answer()
                return False
            if asked.agreed and words[layout.C_SHARED] == replica.yes:
                return replica.yes in (words[layout.C_SHARE_DONE], words[layout.C_BROKEN])
            return words[layout.C_MODE] != PUBLISHES or words[layout.C_PUBLISHED] >= update

        heard = self._wait_for_outcome(cell, announced, asked)
        if asked.agreed and words[layout.C_SHARED] == replica.yes:
            if words[layout.C_SHARE_DONE] != replica.yes:
                raise UpdateLostError("the rank that computed this update for all has not ended it")
            return SHARES, []
        if not heard:
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
        if whole != roots_whole or asked.would_say is not None:
            inputs = replica.digests(now, whole=roots_whole)
        other = contents.first_difference(inputs, cell.digests(after=False), now.inputs())
        if other:
            self._differ(replica, cell, f"{other} before the update")
            return COMPUTES, []
        if whole and not roots_whole:
            return COMPUTES, []  # only this rank has written parameters: the next update is compared
        return PUBLISHES, []

    def _wait_for_outcome(self, cell: Cell, announced: Callable[[], bool], asked: _Asked) -> bool:
        """Wait as `_wait` does. Who has agreed to an update in place does not leave before it is known."""
        try:
            return self._wait(cell, announced, bound=lambda: asked.agreed)
        except BaseException as error:
            if not asked.agreed:
                raise
            self._raised = error
        try:
            return self._wait(cell, announced, bound=lambda: asked.agreed)
        except Exception as error:
            raise UpdateLostError(
                "this rank did not wait for the update that another computes for it"
            ) from error

    def _take(
        self, replica: Replica, cell: Cell, handover: Handover, optimizer: torch.optim.Optimizer, mode: int
    ) -> bool:
        """Take over what the root has computed. Returns False where nothing could be changed."""
        words, now = cell.words, contents.read(optimizer)
        if mode == SHARES:
            numbers = handover.numbers(words[layout.C_NUMBERS])
        else:
            words[layout.C_SHOWS + self._me] = 1
            try:
                numbers = handover.take(now, words[layout.C_BUFFER], words[layout.C_NUMBERS])
            except OSError:
                self._state.fault()
                return False
        contents.set_numbers(optimizer, numbers)
        contents.note_update(now.entries)
        replica.marks = contents.marks(optimizer)
        self._page.words[layout.W_TAKEN_OVER] += 1
        self._page.words[layout.W_IN_PLACE] += mode == SHARES
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
            words[layout.C_SHARER_PID + self._me] = os.getpid()
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
            cell.to_sharers.ring()
            cell.to_root.ring()

    def _wait(
        self,
        cell: Cell,
        done: Callable[[], bool],
        *,
        bell: Bell | None = None,
        live: Callable[[], bool] | None = None,
        bound: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Wait for the root, or for all who must `live`, without the device.

        Returns False where they are late or gone. While `bound` the root has as long as it lives. What signal
        handlers of the script raise ends the wait, or comes behind it if `bound`. `step` raises it.
        """
        if done():
            return True
        bell = cell.to_sharers if bell is None else bell
        turns, began, began_ns = self._state.turns, time.monotonic(), time.perf_counter_ns()
        processor = self._state.processor
        if turns is not None:
            turns.leave()
        looked = began
        if processor is not None:
            processor.enter_wait(time.perf_counter_ns())
        try:
            while True:
                seen = bell.value
                if done():
                    return True
                now = time.monotonic()
                late = now - began >= self._wait_s or cell.words[layout.C_STOPPED]
                if (late or self._raised is not None) and not bound():
                    found = done()
                    if found or not bound():  # it may have been bound in this very look
                        return found
                    continue
                if now - looked >= LOOK_S:
                    looked = now
                    if not (live() if live is not None else cell.root_lives):
                        return done()
                try:
                    bell.wait(seen, LOOK_S)
                except BaseException as error:
                    if self._raised is not None:
                        raise
                    self._raised = error
        finally:
            if processor is not None:
                processor.leave_wait(time.perf_counter_ns())
            waited = int((time.monotonic() - began) * 1e9)
            self._state.blocked += waited
            self._page.words[layout.W_WAITED] += waited
            if turns is not None:
                turns.enter()
            self._away_ns += time.perf_counter_ns() - began_ns


class _Asked:
    """A sharer's answer to a root that asks whether to compute in the pages of all.

    `would_say`: its digests where it shows the root's pages, None: it says no. `agreed`: it has said yes.
    """

    def __init__(self, cell: Cell, group: int, update: int, local_rank: int) -> None:
        self._cell, self._group, self._update, self._me = cell, group, update, local_rank
        self.would_say: list[int] | None = None
        self.agreed = self._answered = False

    def answer(self) -> None:
        """Answer, once, if the root has asked."""
        words = self._cell.words
        if self._answered or words[layout.C_ASKED] != self._update or words[layout.C_GROUP] != self._group:
            return
        yes = self.would_say is not None and self.would_say == self._cell.digests(after=False)
        self._answered, self.agreed = True, yes
        words[layout.C_ANSWER + self._me] = layout.answer(self._group, self._update, yes=yes)
        self._cell.to_root.ring()
