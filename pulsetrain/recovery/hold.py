"""Brings all ranks of a job to a stand between two steps before they are ended, and lets them run again.

`elastic.barrier` says what follows from where the ranks are. Here the agents are asked. A hold that does not
come about in time is given up: the ranks run on, and the move goes on as it would without it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from pulsetrain.core.errors import PulsetrainError
from pulsetrain.elastic import positions
from pulsetrain.elastic.barrier import Decision, Position, decide, waited_for
from pulsetrain.protocol.messages import HoldRanks, Reply
from pulsetrain.recovery.move_request import Hold
from pulsetrain.recovery.nodes import Node
from pulsetrain.recovery.state import JobState

LIMIT_S = 10.0
LIMIT_STEPS = 4
"""A hold is given up after `LIMIT_S`, or after the time of `LIMIT_STEPS` where steps take longer."""
LEASE_S = 10.0
RENEW_S = 2.0
LOOK_S, OWN_LOOK_S = 0.1, 0.25
"""How long an agent waits for one more rank to stand before it answers. A save may be far away."""
PAUSE_S = 0.02  # between two looks at ranks that only wait for operations to end
OWN_GRACE_S = 3.0
"""How long a script's own checkpoint waits for the rank that wrote it to stand."""
SAVED_S = 10.0
"""How long ranks stand at most until their last step can be restored."""


def begin(job: JobState, on_end: Callable[[], None], *, least_s: float = LIMIT_S) -> Hold:
    """Ask all ranks to stand after a step. Returns at once. `on_end` is called once they do, or cannot.

    They have `least_s` for it, more where steps take longer.
    """
    hold = Hold(
        number=_number(job),
        began_s=job.services.clock.monotonic_s(),
        limit_s=max(LIMIT_S, least_s, LIMIT_STEPS * job.rate.step_s),
        attempt=job.attempt.number,
    )
    job.services.background.once("hold", _ask_until_settled(job, hold, on_end))
    return hold


def begin_after_own_save(job: JobState, step: int, limit_s: float, on_end: Callable[[], None]) -> Hold:
    """Have ranks stand once their script has saved `step` or a later one by itself.

    The rank that has saved stands before its next backward pass. No other one can end another step without
    it. So whatever the script has saved is its last step.
    """
    hold = Hold(
        number=_number(job),
        began_s=job.services.clock.monotonic_s(),
        limit_s=limit_s,
        attempt=job.attempt.number,
        saved_step=max(step, 0),
    )
    job.services.background.once("hold", _ask_until_settled(job, hold, on_end))
    return hold


def _number(job: JobState) -> int:
    return (job.now_ns() // 1_000_000) % 0x7FFFFFFF + 1


def settled(job: JobState, hold: Hold, saved_step: int) -> bool:
    """Whether the ranks may be ended: they stand and their last step is saved, or nothing more can be won."""
    if hold.state != "stands":
        return hold.state == "missed"
    now_s = job.services.clock.monotonic_s()
    if saved_step >= job.last_step or now_s - hold.stood_s > SAVED_S:
        return True
    keep(job, hold)
    return False


def keep(job: JobState, hold: Hold) -> None:
    """Let the ranks stand on. Call it again within `LEASE_S`."""
    now_s = job.services.clock.monotonic_s()
    if now_s - hold.renewed_s > RENEW_S:
        hold.renewed_s = now_s
        job.services.background.once("hold", _renew(job, hold))


def has_lapsed(job: JobState, hold: Hold) -> bool:
    """Whether nobody has kept a hold for so long that its ranks run again."""
    return hold.state == "stands" and job.services.clock.monotonic_s() - hold.renewed_s > LEASE_S


def release(job: JobState, hold: Hold | None) -> None:
    """Let the ranks run again."""
    if hold is not None and hold.state != "over":
        hold.state = "over"
        job.services.background.once("end hold", _release(job, hold.attempt))


def release_any(job: JobState) -> None:
    """Let ranks run again that an earlier hub has asked to stand."""
    job.services.background.once("end hold", _release(job, job.attempt.number))


async def _ask_until_settled(job: JobState, hold: Hold, on_end: Callable[[], None]) -> None:
    try:
        await _bring_to_stand(job, hold)
    except Exception as error:  # whatever was answered: the move must not wait for it for ever
        job.services.background.once("end hold", _release(job, hold.attempt))
        _miss(job, hold, f"{type(error).__name__}: {error}")
        on_end()
        raise
    if hold.state in ("stands", "missed"):
        on_end()


async def _bring_to_stand(job: JobState, hold: Hold) -> None:
    clock, world = job.services.clock, range(job.members.world_size)
    past: dict[int, int] = {}
    seen: dict[int, Position] = {}
    while hold.state == "asked" and job.attempt.number == hold.attempt:
        try:
            seen = await _look(job, hold, past)
        except PulsetrainError as error:
            hold.why_not = str(error)
            break
        decision = decide(seen, world)
        if hold.saved_step >= 0:
            decision = Decision(acquired=any(position.stands for position in seen.values()))
        hold.steps = max((position.arrivals for position in seen.values()), default=0)
        if decision.acquired:
            hold.stood_s = hold.renewed_s = clock.monotonic_s()
            hold.state, hold.standing = "stands", _standing(seen)
            return
        if hold.saved_step < 0 and any(not position.complete for position in seen.values()):
            hold.why_not = "a rank exchanges with more others than it can count"
            break
        past.update({rank: seen[rank].arrivals for rank in decision.run_on})
        if clock.monotonic_s() - hold.began_s > hold.limit_s:
            what = waited_for(seen, world) if hold.saved_step < 0 else "the script saved nothing by itself"
            hold.why_not = f"not within {hold.limit_s:g} s: {what}"
            break
        if not decision.run_on and all(position.stands for position in seen.values()):
            await asyncio.sleep(PAUSE_S)  # agents answer at once
    await _release(job, hold.attempt)
    _miss(job, hold, hold.why_not)


def _miss(job: JobState, hold: Hold, why_not: str) -> None:
    """The hold did not come about, unless it was settled or given up meanwhile."""
    if hold.state == "asked":
        hold.state, hold.why_not = "missed", why_not
        job.write("hold_missed", hold.row())


async def _look(job: JobState, hold: Hold, past: Mapping[int, int]) -> dict[int, Position]:
    """Ask every node where its ranks are. Raises `PulsetrainError` where one does not say."""
    by_node: dict[str, dict[str, int]] = defaultdict(dict)
    for member in job.members.world:
        by_node[member.node] = {str(rank): past[rank] for rank in member.ranks if rank in past}
    nodes = job.members.active()
    replies = await asyncio.gather(*(_ask(job, hold, node, by_node[node.name]) for node in nodes))
    return _positions(replies)


async def _ask(job: JobState, hold: Hold, node: Node, past: Mapping[str, int]) -> Reply:
    command = HoldRanks(
        id=job.next_id(),
        attempt=hold.attempt,
        number=hold.number,
        past=past,
        lease_s=LEASE_S,
        wait_s=LOOK_S if hold.saved_step < 0 else OWN_LOOK_S,
        saved_step=hold.saved_step,
    )
    return await job.ask(node, command)


def _positions(replies: Sequence[Reply]) -> dict[int, Position]:
    found: dict[int, Position] = {}
    for reply in replies:
        if reply.error:
            raise PulsetrainError(f"node {reply.node}: {reply.error}")
        ranks = cast("Mapping[str, object]", reply.data.get("ranks", {}))
        found.update({int(rank): positions.decode(int(rank), text) for rank, text in ranks.items()})
    return found


async def _renew(job: JobState, hold: Hold) -> None:
    """Ranks that stand run on by themselves once the lease is over."""
    if hold.state == "stands" and job.attempt.number == hold.attempt:
        hold.standing = _standing(await _look(job, hold, {}))


def _standing(seen: Mapping[int, Position]) -> frozenset[int]:
    return frozenset(rank for rank, position in seen.items() if position.stands)


async def _release(job: JobState, attempt: int) -> None:
    commands = [
        (node, HoldRanks(id=job.next_id(), attempt=attempt, number=0)) for node in job.members.active()
    ]
    await asyncio.gather(*(job.ask(node, command) for node, command in commands))
