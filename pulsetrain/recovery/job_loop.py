"""The loop of one job: takes events one by one and carries out what the transition table says."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import replace

import structlog

from pulsetrain.recovery import actions, begun_anew, left_alone, restart_cost, scheduling
from pulsetrain.recovery.record import Fault
from pulsetrain.recovery.snapshot import snapshot
from pulsetrain.recovery.state import JobState
from pulsetrain.recovery.transitions import FAULTS, TERMINAL, Action, Event, Phase, step

log = structlog.get_logger()

IDLE_S = 1.0  # longest time that a turn waits for an event
ENDED_S = 10.0
_OF_A_LAUNCH = (Event.STARTED, Event.START_FAILED, Event.ALL_DONE)
"""These do not end a launch: they come of it, or all its work is done."""


class JobLoop:
    """Events of one job. `turn` belongs to the supervisor of loops."""

    def __init__(self, state: JobState) -> None:
        self._state = state
        self._events: asyncio.Queue[tuple[Event, Fault | None]] = asyncio.Queue()
        self._todo: deque[Action] = deque()
        self._retrying = False
        self._ended = asyncio.Event()

    async def ended(self) -> None:
        """Wait until the job is over, its nodes were told so and nothing is left to be done, 10 s at most."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), ENDED_S)

    def post(self, event: Event, fault: Fault | None = None) -> None:
        """Queue an event. One that ends the present launch does not wait for it: nodes may load for hours."""
        self._events.put_nowait((event, fault))
        if self._state.phase is not Phase.STARTING or step(Phase.STARTING, event) is None:
            return
        if event not in _OF_A_LAUNCH and self._is_due(event, fault):
            self._state.attempt.overtaken.set()

    def report(self, fault: Fault) -> None:
        """A fault of the present attempt. In observe-only mode it is written down instead of acted on."""
        state = self._state
        if state.services.policy.observe_only and fault.actor == "controller":
            cost = restart_cost.of_restart(snapshot(state), without=fault.node)
            detail: dict[str, object] = {"event": fault.event, "reason": fault.reason, "price": cost}
            if fault.event in (Event.EVICT, Event.NODE_LOST):
                evicts = fault.event is Event.EVICT
                detail["scheduler"] = scheduling.would(state, fault.node, drained=evicts)
            state.write("would", detail, node=fault.node, rank=fault.rank)
            left_alone.note(state, fault)
            return
        if state.recovery is not None and fault.event is Event.NODE_LOST:
            state.blame(fault)
        self.post(fault.event, fault)

    async def turn(self) -> float | None:
        """Take one event and carry out what the table says. Returns None once the job has ended.

        An action that raised is carried out again in the next turn, unless a new event leads elsewhere.
        """
        if not self._todo or (self._retrying and not self._events.empty()):
            try:
                event, fault = await asyncio.wait_for(self._events.get(), IDLE_S)
            except TimeoutError:
                self._launch_anew()
                return 0.0
            self._apply(event, fault)
        self._retrying = True
        while self._todo:
            outcome = await actions.carry_out(self._todo[0], self._state)
            self._todo.popleft()
            self._follow(outcome)
        self._retrying = False
        if self._state.phase in TERMINAL:
            self._ended.set()
            return None
        return 0.0

    def _launch_anew(self) -> None:
        """What ended a launch was taken back before its turn came, as a pre-emption may be."""
        attempt = self._state.attempt
        if self._state.phase is Phase.STARTING and attempt.overtaken.is_set() and not attempt.launched:
            self._todo = deque([Action.LAUNCH])

    def _apply(self, event: Event, fault: Fault | None) -> None:
        state = self._state
        if not self._is_due(event, fault):
            return
        if fault is not None and self._is_wanted(fault):
            fault = replace(fault, attempt=state.attempt.number)  # also where another one was launched since
        transition = step(state.phase, event)
        if transition is None:
            log.debug("event_ignored", job=state.name, phase=state.phase, job_event=event)
            return
        log.info("transition", job=state.name, phase=state.phase, job_event=event, to=transition.phase)
        if event in FAULTS and fault is not None:
            state.begin_recovery(fault)
            begun_anew.keep(state)
        state.enter(transition.phase)
        self._todo = deque(transition.actions)

    def _is_wanted(self, fault: Fault) -> bool:
        """Whether it is an eviction that a person wants, in whatever attempt."""
        return self._state.to_evict.get(fault.node) is fault

    def _is_due(self, event: Event, fault: Fault | None) -> bool:
        """Whether it is of the present attempt."""
        if fault is not None and not self._is_wanted(fault) and fault.attempt != self._state.attempt.number:
            return False
        return event is not Event.PREEMPT or _preempts(self._state)

    def _follow(self, outcome: actions.Outcome) -> None:
        if isinstance(outcome, Fault):
            self.report(outcome)
        elif outcome is not None:
            self.post(outcome)
            self._state.note_first_step()


def _preempts(state: JobState) -> bool:
    """Whether a pre-emption still holds when its turn comes. Perhaps it was taken back.

    Or an attempt was launched since, whose ranks must first be brought to a stop that loses nothing.
    """
    if state.move is None:
        return False
    return state.phase not in (Phase.STARTING, Phase.RUNNING) or state.move.acted_in == state.attempt.number
