"""Makes the `Fault` that stops a job from a rank's exit, a lost node, a finding, or a person's wish. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from pulsetrain.protocol.exits import last_error
from pulsetrain.protocol.messages import RankExit
from pulsetrain.recovery.record import Fault
from pulsetrain.recovery.transitions import Event


class Observation(Protocol):
    """What a job needs of an analyzer's finding. `subject` is the number of a rank, the name of a node."""

    @property
    def kind(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def subject_type(self) -> str: ...
    @property
    def subject(self) -> str: ...
    @property
    def confidence(self) -> float: ...
    @property
    def summary(self) -> str: ...
    @property
    def evidence(self) -> Mapping[str, object]: ...


POOL = "pool"
"""the actor of what the pool asks for"""
USERS_SHARE = 0.7
"""From which share of the blame on a crash the user's own code is at fault. The rule `user_exception` of
log_rules.toml (TypeError, KeyError and others) gives it 0.85, an illegal memory access 0.6 at most."""


_TIMED_OUT = re.compile(r"collective.*timeout|timed out waiting", re.IGNORECASE)


def is_users_own(observation: Observation) -> bool:
    """Whether a crash is an exception of the user's own code."""
    shares = observation.evidence.get("blame")
    share = shares.get("user", 0.0) if isinstance(shares, Mapping) else 0.0
    return bool(share >= USERS_SHARE)


def rank_of(observation: Observation) -> int:
    """The rank that an observation names, -1 where it names none."""
    return int(observation.subject) if observation.subject_type == "rank" else -1


def rank_failed(exit_: RankExit, now_ns: int) -> Fault:
    """A rank ended by itself, with an exit code that is not 0."""
    last = last_error(exit_.last_lines, exit_.code)
    what = f"signal {-exit_.code}" if exit_.code < 0 else f"exit code {exit_.code}"
    return Fault(
        event=Event.RANK_FAILED,
        attempt=exit_.attempt,
        cause="crash",
        reason=f"rank {exit_.rank} on {exit_.node} ended with {what}{': ' + last if last else ''}",
        node=exit_.node,
        rank=exit_.rank,
        onset_ns=min(exit_.ts_ns, now_ns),
        detected_ns=now_ns,
        exit_code=exit_.code,
    )


def node_lost(node: str, reason: str, attempt: int, now_ns: int, *, silent_ns: int = 0) -> Fault:
    """A node of the world is gone. It was last heard `silent_ns` ago."""
    return Fault(
        event=Event.NODE_LOST,
        attempt=attempt,
        cause="node_lost",
        reason=reason,
        node=node,
        onset_ns=now_ns - silent_ns,
        detected_ns=now_ns,
    )


def launch_failed(node: str, error: str, attempt: int, now_ns: int) -> Fault:
    """A node could not start its ranks."""
    return Fault(
        event=Event.START_FAILED,
        attempt=attempt,
        cause="start_failed",
        reason=f"launch on {node}: {error}",
        node=node,
        onset_ns=now_ns,
        detected_ns=now_ns,
    )


def evicted(node: str, reason: str, actor: str, attempt: int, now_ns: int) -> Fault:
    """A person wants an active node to go."""
    return Fault(
        event=Event.EVICT,
        attempt=attempt,
        cause="eviction",
        reason=f"evicted by {actor}: {reason}",
        node=node,
        actor=actor,
        onset_ns=now_ns,
        detected_ns=now_ns,
    )


def migrated(node: str, reason: str, actor: str, attempt: int, now_ns: int) -> Fault:
    """A person takes the job off a node."""
    fault = evicted(node, reason, actor, attempt, now_ns)
    return replace(fault, cause="migration", reason=f"taken off node {node} by {actor}: {reason}")


def grown(reason: str, attempt: int, now_ns: int) -> Fault:
    """The job stops to go on with more nodes."""
    return Fault(
        event=Event.GROW,
        attempt=attempt,
        cause="grow",
        reason=reason,
        onset_ns=now_ns,
        detected_ns=now_ns,
    )


def resized(reason: str, attempt: int, now_ns: int) -> Fault:
    """The job stops to go on with fewer nodes, as a person wants."""
    return replace(grown(reason, attempt, now_ns), cause="resize")


def shared(reason: str, attempt: int, now_ns: int) -> Fault:
    """The job stops to go on with the nodes that the pool gives it."""
    return replace(grown(reason, attempt, now_ns), cause="share", actor=POOL)


def updated(reason: str, actor: str, attempt: int, now_ns: int) -> Fault:
    """The job stops so that a person's update of its program comes into force."""
    return Fault(
        event=Event.UPDATE,
        attempt=attempt,
        cause="update",
        reason=f"updated by {actor}: {reason}",
        actor=actor,
        onset_ns=now_ns,
        detected_ns=now_ns,
    )


def resumed(reason: str, actor: str, attempt: int, now_ns: int) -> Fault:
    """A person lets a pre-empted job go on. What its start takes is measured as that of a recovery."""
    return Fault(
        event=Event.RESUME,
        attempt=attempt,
        cause="preemption",
        reason=f"resumed by {actor}: {reason}",
        actor=actor,
        onset_ns=now_ns,
        detected_ns=now_ns,
    )


def hardware(node: str, reason: str, kind: str, attempt: int, now_ns: int, *, onset_ns: int) -> Fault:
    """The policy wants an active node to go because of its hardware. The trouble began at `onset_ns`."""
    return Fault(
        event=Event.EVICT,
        attempt=attempt,
        cause=kind,
        reason=reason,
        node=node,
        onset_ns=onset_ns,
        detected_ns=now_ns,
    )


def hang(
    observation: Observation, node: str, now_ns: int, *, silent_ns: int, actor: str = "controller"
) -> Fault:
    """The job stands still. The rank at fault on `node`, or all ranks, made no progress for `silent_ns`.

    `actor` decided to act.
    """
    return Fault(
        event=Event.HANG,
        attempt=observation.attempt,
        cause="hang",
        reason=observation.summary,
        node=node,
        rank=rank_of(observation),
        actor=actor,
        onset_ns=now_ns - silent_ns,
        detected_ns=now_ns,
    )


def ended_by_timeout(fault: Fault, exits: Iterable[RankExit]) -> bool:
    """Whether the rank of this fault ended because torch's own timeout was over."""
    of_rank = [e for e in exits if (e.node, e.rank) == (fault.node, fault.rank)]
    return any(_TIMED_OUT.search(line) for e in of_rank for line in e.last_lines)


def hung(victim: Fault, rank: int, node: str) -> Fault:
    """A hang of `rank`, -1 for that of no single one, was named. torch has then ended a rank that waited."""
    who = f"rank {rank} on {node} hangs" if rank >= 0 else "the job hangs"
    reason = f"{who}, and torch's timeout ended rank {victim.rank} on {victim.node}"
    return replace(victim, event=Event.HANG, cause="hang", reason=reason, node=node, rank=rank)


def crash(observation: Observation, node: str, now_ns: int) -> Fault:
    """The rank that ended first is another one than the first whose exit arrived."""
    return Fault(
        event=Event.RANK_FAILED,
        attempt=observation.attempt,
        cause="crash",
        reason=observation.summary,
        node=node,
        rank=rank_of(observation),
        onset_ns=now_ns,
        detected_ns=now_ns,
    )
