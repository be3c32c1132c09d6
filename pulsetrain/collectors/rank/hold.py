"""Stands still between two steps while the agent asks for it through the ring.

While nobody asks, a step costs one look at one word. A rank stands only on its main thread, after a step and,
where a `Checkpointer` saves each step, after the save. Where the script saves by itself, the agent asks for
a stand between such a save and the next backward pass. It runs on when the agent says so, and by itself once
its time is over. So a lost agent or hub cannot hold a job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from threading import get_ident
from typing import TYPE_CHECKING

from pulsetrain.collectors.checkpoint_cell import read_cell
from pulsetrain.collectors.layout import (
    SAVED_AT,
    W_HOLD,
    W_HOLD_PAST,
    W_HOLD_SAVED,
    W_HOLD_UNTIL,
    W_IN_FLIGHT,
    W_LAST,
    W_LAST_STEP,
    W_RAN_ON,
    W_STANDS,
)
from pulsetrain.collectors.rank.phases import Phase, category_number
from pulsetrain.protocol.transfer_peer import NO_PEER

if TYPE_CHECKING:
    from pulsetrain.collectors.rank.operations import Operation
    from pulsetrain.collectors.rank.phases import RankState

PHASE = "hold"
LOOK_S = 0.001
SAVE_AGAIN = 1
"""Ends of steps that may pass without a save before a rank stands at one."""


class HoldPoint:
    """Where a rank stands. Create it on the main thread. Methods return how long they stood, in ns.

    A signal handler of the script may raise while the rank stands. `raised` keeps that for who called.
    """

    def __init__(
        self,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.saves = False
        self.raised: BaseException | None = None
        self._main = get_ident()
        self._number = self._arrivals = self._unsaved = 0
        self._given_up = 0  # number of the barrier whose time was over
        self._sleep, self._clock_ns = sleep, clock_ns
        self._phase: Phase | None = None

    def at_step(self, state: RankState) -> int:
        """A step has ended, and the agent asks. Where a save follows each step, the rank stands after it."""
        if state.words[W_HOLD_SAVED]:
            return 0
        self._begin(state)
        self._unsaved += 1
        return 0 if self.saves and self._unsaved <= SAVE_AGAIN else self._arrive(state)

    def after_save(self, state: RankState) -> int:
        """The state of the last step has been saved, or is being copied beside what follows."""
        self.saves = True
        if not state.words[W_HOLD] or state.words[W_HOLD_SAVED]:
            return 0
        self._begin(state)
        self._unsaved = 0
        return self._arrive(state)

    def at_backward(self, state: RankState) -> int:
        """A backward pass is about to begin, and the agent asks. The script may have saved by itself.

        Where it has saved the last step, this is the earliest point at which its files have their last names.
        """
        words = state.words
        if not words[W_HOLD_SAVED]:
            return 0
        saved = read_cell(state.ring.memory, SAVED_AT)
        if saved is None or saved.step < max(words[W_HOLD_SAVED] - 1, words[W_LAST_STEP]):
            return 0
        self._begin(state)
        return self._arrive(state)

    def _begin(self, state: RankState) -> None:
        number = state.words[W_HOLD]
        if number != self._number:
            self._number, self._arrivals, self._unsaved = number, 0, 0

    def _arrive(self, state: RankState) -> int:
        if get_ident() != self._main or self._number == self._given_up:
            return 0
        self._arrivals += 1
        if self._arrivals <= state.words[W_HOLD_PAST]:
            return 0
        try:
            if self._phase is None:
                self._phase = Phase(state, state.ring.intern(PHASE), category_number(PHASE, "other"))
            with self._phase:
                if state.turns is None:
                    return self._stand(state)
                state.turns.leave()  # the others need the device to get to where they stand
                try:
                    return self._stand(state)
                finally:
                    state.turns.enter()
        except Exception:  # noqa: BLE001 - the training loop must not see our faults
            state.fault()
            return 0
        finally:
            state.words[W_STANDS] = 0

    def _stand(self, state: RankState) -> int:
        words, number, began_ns = state.words, self._number, self._clock_ns()
        while words[W_HOLD] == number and self._arrivals > words[W_HOLD_PAST]:
            if self._clock_ns() >= words[W_HOLD_UNTIL]:
                self._given_up = number
                words[W_RAN_ON] += 1
                break
            state.poll()
            words[W_LAST] = self._clock_ns()  # it is not hung
            words[W_IN_FLIGHT] = in_flight(state.pending)
            words[W_STANDS] = number << 32 | self._arrivals
            try:
                self._sleep(LOOK_S)
            except BaseException as error:  # noqa: BLE001 - a signal handler's of the script: the script gets it
                self.raised = error
                break
        return self._clock_ns() - began_ns


def in_flight(pending: Mapping[object, object]) -> int:
    """Count operations that may go on. Those that tell their end only to who waits are left out."""
    operations: list[Operation] = [entry[0] for entry in list(pending.values())]  # type: ignore[index]
    return sum(not (op.group.host_only and (op.peer != NO_PEER or op.output)) for op in operations)
