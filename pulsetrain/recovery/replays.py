"""Training is replayed in groups of nodes where a fault that names nobody came again and checks found nobody.

That is the last step of ByteRobust's ladder (arXiv 2509.16293, section 4). Checks of products, memory and
network miss what only shows while a model trains. The job stands still meanwhile. Nothing of it is touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pulsetrain.diagnostics.replay_groups import MOST_PHASES, ReplayPlan, ReplayResult, group_size
from pulsetrain.diagnostics.rounds import Group
from pulsetrain.protocol.messages import HostStore, ReplayCheck, Reply, Stop
from pulsetrain.recovery.nodes import Node
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.state import JobState
from pulsetrain.recovery.store_host import is_loopback

OWN_SETUP_S = 60.0  # for processes to begin and to meet, on top of the time that they train
MARGIN_S = 10.0  # for the way of a command and its reply, and for ranks to end
FAILED_TOGETHER_S = 2.0  # for other members to say that they have failed, too, after the first one
END_S = 15.0
LOOK_S = 0.25  # between two looks whether somebody wants the job to stop
LATE_FACTOR = (
    3.0  # a group that ran out of time had to have so many times what the slowest one took that passed
)
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
        return cls(command=command, seconds=policy.replay_s, timeout_s=_limits_s(policy)[command])


def _limits_s(policy: Policy) -> tuple[float, float]:
    """How long one phase may take: of the project's own training, and of a command."""
    return policy.replay_s + OWN_SETUP_S, policy.replay_limit_s


def longest_s(policy: Policy) -> float:
    """How long a replay may take at most."""
    phase_s = max(_limits_s(policy)) + MARGIN_S + FAILED_TOGETHER_S + 2 * END_S
    return MOST_PHASES * phase_s if policy.replay_s else 0.0


async def at_a_stop(job: JobState) -> dict[str, str]:
    """Replay on all nodes that passed the checks. The nodes to evict, with the reason."""
    policy = job.services.policy
    able = [*job.members.active(), *job.members.standbys()]
    nodes = [n for n in able if n.usable and n.hello.replays and n.name not in job.members.failed]
    size = group_size(len(nodes), policy.replay_nodes)
    if not policy.replay_s or _is_wanted_elsewhere(job):
        return {}
    if not size:
        groups = f"two groupings by {policy.replay_nodes}" if policy.replay_nodes else "groups"
        job.write("replay_skipped", {"reason": f"for {groups} there are too few nodes: {len(nodes)}"})
        return {}
    detail: dict[str, object] = {"nodes": sorted(n.name for n in nodes), "group_nodes": size}
    if policy.observe_only:
        reason = "again a fault that names nobody, and checks found nobody"
        job.write("would", {"event": "replay", "reason": reason, **detail})
        return {}
    what = _Replay.of(nodes, policy)
    detail["what"] = "command" if what.command else "own"
    job.write("replay_started", {**detail, "limit_s": what.timeout_s})
    began_s = job.services.clock.monotonic_s()
    await _free_devices(job)
    plan, phases = ReplayPlan([node.name for node in nodes], size), _Phases(job, nodes, what)
    ended = await phases.run(plan)
    verdict = plan.verdict()
    named = {} if ended else dict(verdict.named)
    failed = [result.row() for result in plan.results if not result.ok]
    job.write(
        "replay",
        {
            **detail,
            "named": named,
            "suspects": list(verdict.suspects),
            "reason": ended or verdict.reason,
            "phases": plan.phases,
            "groups": len(plan.results),
            "failed": failed[:SHOWN_GROUPS],
            "not_judged": dict(list(phases.not_judged.items())[:SHOWN_GROUPS]),
            "seconds": job.services.clock.monotonic_s() - began_s,
        },
    )
    return _to_go(job, named)


def _is_wanted_elsewhere(job: JobState) -> str:
    """Why a replay would hold somebody up, "" where it does not."""
    if job.ended_by:
        return "somebody has ended the job"
    return "the job is to stop or to move" if job.move is not None else ""


def _to_go(job: JobState, named: dict[str, str]) -> dict[str, str]:
    """Those of the named nodes without which the job can go on."""
    left = [node for node in job.members.active() if node.name not in named]
    spare = [node for node in job.members.standbys() if node.name not in named]
    if named and not job.resizing.fit(len(left) + len(spare)):
        for node, reason in named.items():
            why_not = "no other node can take its place: it stays in the job"
            job.write("eviction_deferred", {"reason": reason, "why_not": why_not}, node=node)
        return {}
    if job.recovery is not None:
        job.recovery.replay_named = frozenset(named)
    return named


async def _free_devices(job: JobState) -> None:
    """End processes that wait to go on: they hold memory of their GPUs. All ranks start anew after that."""
    timeout_s = job.services.policy.reply_timeout_s
    nodes = [node for node in job.members.present() if node.usable]
    stops = (job.ask(n, Stop(id=job.next_id(), reason="training is replayed"), timeout_s) for n in nodes)
    await asyncio.gather(*stops)
    if job.recovery is not None:
        job.recovery.none_kept = job.recovery.none_kept or "training was replayed"
        job.recovery.parked.clear()


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    """How a group's replay ended. `result` is None where it says nothing, and `why` then says why.

    `late`: it ran out of time. `seconds` is how long its slowest member took.
    """

    members: Group
    result: ReplayResult | None = None
    why: str = ""
    late: bool = False
    seconds: float = 0.0


class _Phases:
    """Runs the phases of one replay. All groups of a phase train at the same time.

    `not_judged` maps nodes to why a group with them said nothing.
    """

    def __init__(self, job: JobState, nodes: Iterable[Node], what: _Replay) -> None:
        self._job, self._what = job, what
        self._nodes = {node.name: node for node in nodes}
        self._slowest_s = 0.0  # of groups that passed
        self.not_judged: dict[str, str] = {}

    async def run(self, plan: ReplayPlan) -> str:
        """Run phases until nothing more can be learned. Why it was ended before, "" where it was not."""
        while groups := plan.next_phase():
            phase = asyncio.gather(*(self._group(group, plan.phases - 1) for group in groups))
            while not phase.done():
                await asyncio.wait([phase], timeout=LOOK_S)
                why = _is_wanted_elsewhere(self._job)
                if why:
                    await self._end(self._nodes)
                    await phase
                    return why
            self._take(plan, phase.result())
        return ""

    def _take(self, plan: ReplayPlan, outcomes: Sequence[_Outcome]) -> None:
        passed = [o.seconds for o in outcomes if o.result is not None and o.result.ok]
        self._slowest_s = max([self._slowest_s, *passed])
        for outcome in outcomes:
            why = outcome.why
            if outcome.late and LATE_FACTOR * self._slowest_s > self._what.timeout_s:
                why = (
                    f"it did not end in {self._what.timeout_s:g} s, and others needed {self._slowest_s:.0f} s"
                )
            if why:
                self.not_judged |= dict.fromkeys(outcome.members, why)
            elif outcome.result is not None:
                plan.take([outcome.result])

    async def _group(self, members: Group, phase: int) -> _Outcome:
        """One group trains."""
        host = self._host(members, phase)
        hosted = await self._ask(host, HostStore(id=self._job.next_id(), job=STORE_JOB))
        if hosted.error:
            return _Outcome(members=members, why=f"{host.name}: {hosted.error}")
        command = ReplayCheck(
            id=0,
            members=members,
            store_address=host.hello.address,
            store_port=int(hosted.data["port"]),
            number=self._job.attempt.number * 10 + phase,
            seconds=self._what.seconds,
            timeout_s=self._what.timeout_s,
            command=self._what.command,
        )
        replies = await self._trained(members, command)
        seconds = max(_seconds(reply) for reply in replies)
        leave = [f"{name}: its agent leaves" for name in members if self._nodes[name].leaving is not None]
        why = next(filter(None, [*leave, *map(_why_not_judged, replies)]), "")
        if why:
            return _Outcome(members=members, why=why)
        failed = sorted((reply for reply in replies if not _passed(reply)), key=_seconds)
        error = f"{failed[0].node}: {failed[0].data.get('error') or 'failed'}" if failed else ""
        result = ReplayResult(members=members, ok=not failed, error=error, phase=phase)
        late = bool(failed) and all(reply.data.get("late") for reply in failed)
        return _Outcome(members=members, result=result, late=late, seconds=seconds)

    def _host(self, members: Group, phase: int) -> Node:
        """The member at whose store a group meets: another one in each phase.

        One beside the hub may say that its address is that of loopback. Others do not reach it there.
        """
        nodes = [self._nodes[name] for name in members]
        outward = [node for node in nodes if not is_loopback(node.hello.address)] or nodes
        return outward[phase % len(outward)]

    async def _trained(self, members: Group, command: ReplayCheck) -> list[Reply]:
        """What the members say that were not ended. Once one has failed the others are: they may wait for it
        for ever."""
        patience_s = command.timeout_s + MARGIN_S
        asked = {
            name: asyncio.create_task(
                self._nodes[name].ask(replace(command, id=self._job.next_id()), patience_s)
            )
            for name in members
        }
        await _until_one_failed(list(asked.values()))
        all_passed = all(task.done() and _passed(task.result()) for task in asked.values())
        _, late = await asyncio.wait(asked.values(), timeout=0 if all_passed else FAILED_TOGETHER_S)
        ended = [name for name, task in asked.items() if task in late]
        await self._end(ended)
        replies = {name: await task for name, task in asked.items()}
        return [reply for name, reply in replies.items() if name not in ended] or list(replies.values())

    async def _end(self, names: Iterable[str]) -> None:
        ends = (self._ask(self._nodes[name], ReplayCheck(id=self._job.next_id())) for name in names)
        await asyncio.gather(*ends)

    async def _ask(self, node: Node, command: HostStore | ReplayCheck) -> Reply:
        return await node.ask(command, max(END_S, self._job.services.policy.reply_timeout_s))


async def _until_one_failed(asked: Sequence[asyncio.Task[Reply]]) -> None:
    """Wait for a reply that says so, or for all."""
    pending = set(asked)
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        if any(not _passed(task.result()) for task in done):
            return


def _seconds(reply: Reply) -> float:
    return float(reply.data.get("seconds", 0.0))


def _passed(reply: Reply) -> bool:
    return not reply.error and bool(reply.data.get("ok", False))


def _why_not_judged(reply: Reply) -> str:
    """Why a member's answer says nothing about any machine, "" where it does."""
    why = reply.error or str(reply.data.get("not_judged", ""))
    return f"{reply.node}: {why}" if why else ""
