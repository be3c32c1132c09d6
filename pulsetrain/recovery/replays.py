"""Training is replayed in groups of nodes where a fault that names nobody came again and checks found nobody.

That is the last step of ByteRobust's ladder (arXiv 2509.16293, section 4). Checks of products, memory and
network miss what only shows while a model trains. The job stands still meanwhile. Nothing of it is touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from pulsetrain.diagnostics.replay_groups import ReplayPlan, ReplayResult, group_size
from pulsetrain.diagnostics.rounds import Group
from pulsetrain.protocol.messages import HostStore, ReplayCheck, Reply
from pulsetrain.recovery.nodes import Node, was_reached
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.state import JobState

OWN_SETUP_S = 60.0  # for processes to begin and to meet, on top of the time that they train
MARGIN_S = 10.0  # for the way of a command and its reply, and for ranks to end
FAILED_TOGETHER_S = 2.0  # for other members to say that they have failed, too, after the first one
END_S = 15.0
STORE_JOB = "replay"
SHOWN_GROUPS = 64


@dataclass(frozen=True, kw_only=True)
class _Replay:
    """What is trained, and for how long."""

    command: bool
    seconds: float
    timeout_s: float

    @classmethod
    def of(cls, nodes: Sequence[Node], policy: Policy) -> _Replay:
        """The command that all agents were given, else the project's own training."""
        command = all(node.hello.replays == "command" for node in nodes)
        limit_s = policy.replay_limit_s if command else policy.replay_s + OWN_SETUP_S
        return cls(command=command, seconds=policy.replay_s, timeout_s=limit_s)


async def at_a_stop(job: JobState) -> dict[str, str]:
    """Replay on all nodes that passed the checks. The nodes to evict, with the reason."""
    policy = job.services.policy
    able = [*job.members.active(), *job.members.standbys()]
    nodes = [n for n in able if n.usable and n.hello.replays and n.name not in job.members.failed]
    size = group_size(len(nodes), policy.replay_nodes)
    detail: dict[str, object] = {"nodes": sorted(n.name for n in nodes), "group_nodes": size}
    if not policy.replay_s:
        return {}
    if policy.observe_only:
        job.write("would", {"event": "replay", **detail})
        return {}
    if not size:
        groups = f"two groupings by {policy.replay_nodes}" if policy.replay_nodes else "groups"
        job.write("replay_skipped", {"reason": f"for {groups} there are too few nodes: {len(nodes)}"})
        return {}
    what = _Replay.of(nodes, policy)
    detail["what"] = "command" if what.command else "own"
    job.write("replay_started", {**detail, "limit_s": what.timeout_s})
    began_s = job.services.clock.monotonic_s()
    plan = ReplayPlan([node.name for node in nodes], size)
    await _Phases(job, nodes, what).run(plan)
    verdict = plan.verdict()
    failed = [result.row() for result in plan.results if not result.ok]
    job.write(
        "replay",
        {
            **detail,
            "named": dict(verdict.named),
            "suspects": list(verdict.suspects),
            "reason": verdict.reason,
            "phases": plan.phases,
            "groups": len(plan.results),
            "failed": failed[:SHOWN_GROUPS],
            "seconds": job.services.clock.monotonic_s() - began_s,
        },
    )
    if job.recovery is not None:
        job.recovery.replay_named = frozenset(verdict.named)
    return dict(verdict.named)


class _Phases:
    """Runs the phases of one replay. All groups of a phase train at the same time."""

    def __init__(self, job: JobState, nodes: Iterable[Node], what: _Replay) -> None:
        self._job, self._what = job, what
        self._nodes = {node.name: node for node in nodes}

    async def run(self, plan: ReplayPlan) -> None:
        """Run phases until nothing more can be learned, or somebody ends the job."""
        while not self._job.ended_by and (groups := plan.next_phase()):
            phase = plan.phases - 1
            results = await asyncio.gather(*(self._group(group, phase) for group in groups))
            plan.take(result for result in results if result is not None)

    async def _group(self, members: Group, phase: int) -> ReplayResult | None:
        """One group trains. None where a connection was lost: that says nothing about its machine."""
        store = self._nodes[members[0]]
        hosted = await self._ask(store, HostStore(id=self._job.next_id(), job=STORE_JOB))
        if hosted.error:
            return None
        command = ReplayCheck(
            id=0,
            members=members,
            store_address=store.hello.address,
            store_port=int(hosted.data["port"]),
            number=self._job.attempt.number * 10 + phase,
            seconds=self._what.seconds,
            timeout_s=self._what.timeout_s,
            command=self._what.command,
        )
        replies = await self._trained(members, command)
        if not all(map(was_reached, replies)):
            return None
        failed = [reply for reply in replies if not _passed(reply)]
        first = min(failed, key=_seconds, default=None)
        error = "" if first is None else f"{first.node}: {first.error or first.data.get('error') or 'failed'}"
        return ReplayResult(members=members, ok=not failed, error=error, phase=phase)

    async def _trained(self, members: Group, command: ReplayCheck) -> list[Reply]:
        """What the members say. Once one has failed the others are ended: they may wait for it for ever."""
        patience_s = command.timeout_s + MARGIN_S
        asked = [
            asyncio.create_task(self._nodes[name].ask(replace(command, id=self._job.next_id()), patience_s))
            for name in members
        ]
        await _until(asked, lambda reply: not _passed(reply))
        _, late = await asyncio.wait(asked, timeout=0 if _all_passed(asked) else FAILED_TOGETHER_S)
        if late:
            names = [name for name, task in zip(members, asked, strict=True) if task in late]
            ends = (self._ask(self._nodes[n], ReplayCheck(id=self._job.next_id())) for n in names)
            await asyncio.gather(*ends)
        return list(await asyncio.gather(*asked))

    async def _ask(self, node: Node, command: HostStore | ReplayCheck) -> Reply:
        return await node.ask(command, max(END_S, self._job.services.policy.reply_timeout_s))


async def _until(asked: Sequence[asyncio.Task[Reply]], found: Callable[[Reply], bool]) -> None:
    """Wait for a reply like this, or for all."""
    pending = set(asked)
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        if any(found(task.result()) for task in done):
            return


def _all_passed(asked: Iterable[asyncio.Task[Reply]]) -> bool:
    return all(task.done() and _passed(task.result()) for task in asked)


def _seconds(reply: Reply) -> float:
    return float(reply.data.get("seconds", 0.0))


def _passed(reply: Reply) -> bool:
    return not reply.error and bool(reply.data.get("ok", False))
