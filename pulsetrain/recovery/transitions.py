"""What a job does next: a table from (phase, event) to (phase, actions). Pure.

A job turns facts into events (a reply, a lost connection, a finding), looks the pair up here, and carries out
the actions in order. A pair that is not in the table changes nothing: it is logged and otherwise ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Phase(StrEnum):
    """Where a job stands."""

    FORMING = "forming"
    STARTING = "starting"
    RUNNING = "running"
    SUSPENDING = "suspending"
    CHECKING = "checking"
    WAITING = "waiting"
    PREEMPTING = "preempting"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    FAILED = "failed"


class Event(StrEnum):
    """What happened."""

    QUORUM = "quorum"  # enough healthy nodes for the world
    SHORT = "short"  # checked, but fewer healthy nodes than the world needs
    INTERRUPTED = "interrupted"  # the same under a new hub: the one before was lost while the job stood
    ADOPTED = "adopted"  # agents of a running attempt reported to a new hub
    STARTED = "started"  # every node launched its ranks
    START_FAILED = "start_failed"
    RANK_FAILED = "rank_failed"
    NODE_LOST = "node_lost"
    HANG = "hang"
    EVICT = "evict"  # an active node is to go, by a person or by policy
    GROW = "grow"  # nodes are back: a shrunk job goes on with more of them
    UPDATE = "update"  # a person's update of the program comes into force now
    PREEMPT = "preempt"  # somebody needs the devices: the job stops and keeps its state
    RESUME = "resume"  # a pre-empted job may go on
    LEFT = "left"  # a signal ended the agents of all active nodes: somebody ended the job
    ALL_DONE = "all_done"  # every rank ended with status 0
    STOPPED = "stopped"  # no rank is left
    EXHAUSTED = "exhausted"  # no restart is left, or restarting cannot help


class Action(StrEnum):
    """What the controller does, in the order of the table."""

    LAUNCH = "launch"
    SUSPEND = "suspend"
    CHECK = "check"
    REPLACE = "replace"  # evict what failed, replace missing nodes by standbys
    ASK_FOR_NODES = "ask_for_nodes"
    REST = "rest"  # write down that the job is pre-empted
    DISMISS = "dismiss"


FAULTS = (
    Event.RANK_FAILED,
    Event.NODE_LOST,
    Event.HANG,
    Event.EVICT,
    Event.GROW,
    Event.UPDATE,
    Event.START_FAILED,
)
TERMINAL = (Phase.FINISHED, Phase.FAILED)
PREEMPTED = (Phase.PREEMPTING, Phase.PREEMPTED)


@dataclass(frozen=True)
class Transition:
    """The phase to enter and what to do on the way."""

    phase: Phase
    actions: tuple[Action, ...] = ()


def _table() -> dict[tuple[Phase, Event], Transition]:
    suspend = Transition(Phase.SUSPENDING, (Action.SUSPEND,))
    launch = Transition(Phase.STARTING, (Action.REPLACE, Action.LAUNCH))
    fail = Transition(Phase.FAILED, (Action.DISMISS,))
    table = {
        (Phase.FORMING, Event.QUORUM): launch,
        (Phase.FORMING, Event.INTERRUPTED): Transition(Phase.CHECKING, (Action.CHECK,)),
        (Phase.FORMING, Event.ADOPTED): Transition(Phase.RUNNING),
        (Phase.STARTING, Event.STARTED): Transition(Phase.RUNNING),
        (Phase.STARTING, Event.ALL_DONE): Transition(Phase.FINISHED, (Action.DISMISS,)),
        (Phase.RUNNING, Event.ALL_DONE): Transition(Phase.FINISHED, (Action.DISMISS,)),
        (Phase.SUSPENDING, Event.STOPPED): Transition(Phase.CHECKING, (Action.CHECK,)),
        (Phase.CHECKING, Event.QUORUM): launch,
        (Phase.CHECKING, Event.SHORT): Transition(Phase.WAITING, (Action.REPLACE, Action.ASK_FOR_NODES)),
        (Phase.WAITING, Event.QUORUM): launch,
        (Phase.RUNNING, Event.PREEMPT): Transition(Phase.PREEMPTING, (Action.SUSPEND,)),
        (Phase.PREEMPTING, Event.STOPPED): Transition(Phase.PREEMPTED, (Action.REST,)),
        (Phase.PREEMPTED, Event.RESUME): Transition(Phase.CHECKING, (Action.CHECK,)),
    }
    for phase in (Phase.PREEMPTED, Phase.WAITING):  # its ranks run after all
        table[phase, Event.ADOPTED] = table[Phase.FORMING, Event.ADOPTED]
    table[Phase.STARTING, Event.PREEMPT] = table[Phase.RUNNING, Event.PREEMPT]  # nothing could be restored
    for phase in (Phase.FORMING, Phase.WAITING):
        table[phase, Event.PREEMPT] = Transition(Phase.PREEMPTED, (Action.REST,))
    for phase in (Phase.STARTING, Phase.RUNNING):
        table.update({(phase, fault): suspend for fault in FAULTS})
    for phase in (Phase.FORMING, Phase.STARTING, Phase.RUNNING, Phase.CHECKING, Phase.WAITING):
        table[phase, Event.EXHAUSTED] = fail
    table.update({(phase, Event.LEFT): fail for phase in Phase if phase not in TERMINAL})
    return table


TABLE: Mapping[tuple[Phase, Event], Transition] = MappingProxyType(_table())


def step(phase: Phase, event: Event) -> Transition | None:
    """The transition for `event` in `phase`, None where the fact changes nothing."""
    return TABLE.get((phase, event))
