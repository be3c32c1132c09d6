"""The check of nodes, before a relaunch or on request: self-checks, and rounds of all-gathers."""

from __future__ import annotations

import asyncio
import functools
import itertools
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from pulsetrain.core.json import JsonObject
from pulsetrain.diagnostics.compare import slow_checks
from pulsetrain.diagnostics.faulty_nodes import TELLING
from pulsetrain.diagnostics.measurement import used_by_others
from pulsetrain.diagnostics.node_check import Level, NodeCheck, NodeVerdict
from pulsetrain.diagnostics.rounds import Group, GroupResult
from pulsetrain.protocol.messages import HostStore, PairCheck, Reply, SelfCheck
from pulsetrain.recovery.nodes import Node, was_reached
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.store_host import is_loopback

Ids = Callable[[], int]

LEAST_ROUND_S = 1.0  # a round that would have less time is not begun
LEAST_TIMEOUT_S = 2.0
PATIENCE = 5.0  # times what the slowest group that passed took, from the second round on
GPU_SETUP_S = 20.0  # for the drivers of a node's GPUs and for NCCL to begin, which nobody is blamed for
GIVEN_UP_SHARE = 0.9  # of its time, after which a group that failed had not failed by itself
MARGIN_S = 2.0  # for the way of a command and its reply
READY_AGAIN_S = 0.5
READY_TRIES = 120  # a minute for an agent whose processes ended to import torch once more
GROUP_TIMEOUT_S = 60.0  # for processes to begin on each GPU, to meet (half of it at most) and to exchange
GPUS_S = 13.0  # for drivers to begin on each GPU, one after the other. The agent itself allows 20 s
WHOLE_NODE_S = GROUP_TIMEOUT_S + 30.0  # for that, and for ports that send to each other
SHOWN_ROUNDS = 2  # whose groups are all part of the event. Of later rounds the failures are
STORE_JOB = "pairwise"


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """`failed` maps a node to the reason. `reports` holds what each node measured.

    `unreached` are nodes that lost their connection meanwhile, with what was asked of them. Nothing is known
    about their machines, so they have not failed. Nor is it about `busy` ones, whose memory others use.

    `verdict` is what the rounds of all-gathers say, None where there were none. `seconds` is how long all
    of it took.
    """

    failed: Mapping[str, str]
    reports: Mapping[str, JsonObject]
    groups: Sequence[GroupResult] = field(default_factory=tuple)
    verdict: NodeVerdict | None = None
    seconds: float = 0.0
    unreached: Mapping[str, str] = field(default_factory=dict)
    busy: frozenset[str] = frozenset()

    @property
    def passed(self) -> frozenset[str]:
        """Nodes that passed beside another one and did not fail."""
        together = {name for group in self.groups if group.ok for name in group.members}
        return frozenset(together - self.failed.keys() - self.unreached.keys())

    def detail(self) -> dict[str, object]:
        """Return the report as the detail of a `self_check` event. Slow nodes are a note, not a failure."""
        rows = {node: data.get("checks", ()) for node, data in self.reports.items()}
        verdict = self.verdict.row() if self.verdict else {}
        noted = self.verdict.noted if self.verdict else {}
        shown = [g for g in self.groups if not g.ok or g.round < SHOWN_ROUNDS]
        return {
            "failed": dict(self.failed),
            "unreached": dict(self.unreached),
            "reports": dict(self.reports),
            "pairs": [group.row() for group in shown],
            "links": verdict.get("links", []),
            "inconclusive": verdict.get("reason", ""),
            "slow": {"checks": slow_checks(rows), "nodes": verdict.get("slow", {}), **noted},
            "verdict": verdict,
            "seconds": self.seconds,
        }


async def run(
    nodes: Sequence[Node],
    policy: Policy,
    ids: Ids,
    *,
    level: Level | None,
    store_job: str = STORE_JOB,
    now_s: Callable[[], float] = time.monotonic,
) -> CheckReport:
    """Check `nodes`. A `level` adds rounds of all-gathers among those that pass the self-check. A node with a
    busy GPU takes no part in rounds: without memory it would fail beside anybody.

    `store_job` names the rendezvous store. Checks that run at the same time need different names.
    """
    began_s = now_s()
    failed, unreached, reports = await _self_checks(nodes, policy, ids, level)
    busy = frozenset(name for name, data in reports.items() if data.get("busy"))
    able = (n for n in nodes if n.name not in {*failed, *unreached, *busy})
    healthy = sorted(able, key=lambda n: n.name)
    if level is None or len(healthy) < 2:
        seconds = now_s() - began_s
        return CheckReport(failed=failed, reports=reports, unreached=unreached, busy=busy, seconds=seconds)
    kinds = {name: str(data.get("kind", "")) for name, data in reports.items()}
    report = await beside_others(healthy, policy, ids, level, kinds=kinds, store_job=store_job, now_s=now_s)
    return replace(
        report,
        failed=failed | dict(report.failed),
        reports=reports,
        unreached=unreached | dict(report.unreached),
        busy=busy | report.busy,
        seconds=now_s() - began_s,
    )


async def beside_others(
    nodes: Sequence[Node],
    policy: Policy,
    ids: Ids,
    level: Level,
    *,
    kinds: Mapping[str, str] = MappingProxyType({}),
    store_job: str = STORE_JOB,
    now_s: Callable[[], float] = time.monotonic,
) -> CheckReport:
    """Rounds of all-gathers alone, among nodes that have passed the self-check. `kinds` says what each is."""
    began_s = now_s()
    switches = {n.name: n.hello.switch for n in nodes if n.hello.switch}
    check = NodeCheck({n.name: kinds.get(n.name, "") for n in nodes}, level, seed=ids(), switches=switches)
    rounds = _Rounds(nodes, policy, ids, store_job, now_s)
    await rounds.run(check, level)
    verdict = check.verdict()
    return CheckReport(
        failed=_without(rounds.unreached, rounds.failed | dict(verdict.faults.faulty)),
        reports={},
        unreached=rounds.unreached,
        busy=frozenset(verdict.busy),
        groups=check.results,
        verdict=verdict,
        seconds=now_s() - began_s,
    )


def _without(names: Mapping[str, str], failed: Mapping[str, str]) -> dict[str, str]:
    return {name: reason for name, reason in failed.items() if name not in names}


async def _self_checks(
    nodes: Sequence[Node], policy: Policy, ids: Ids, level: Level | None
) -> tuple[dict[str, str], dict[str, str], dict[str, JsonObject]]:
    """Nodes that failed, nodes that lost their connection, and what each one measured."""
    replies = await asyncio.gather(*(_self_check(node, policy, ids, level) for node in nodes))
    failed: dict[str, str] = {}
    unreached: dict[str, str] = {}
    for node, reply in zip(nodes, replies, strict=True):
        if not was_reached(reply):
            unreached[node.name] = f"self-check: {reply.error}"
        elif reply.error:
            failed[node.name] = f"self-check: {reply.error}"
        elif not reply.data.get("ok", False):
            failed[node.name] = f"self-check failed: {', '.join(reply.data.get('failed', []))}"
    reports = {n.name: dict(r.data) for n, r in zip(nodes, replies, strict=True)}
    return _without_cuda(nodes, reports) | _too_few_gpus(nodes, reports) | failed, unreached, reports


def _without_cuda(nodes: Sequence[Node], reports: Mapping[str, JsonObject]) -> dict[str, str]:
    """Nodes that have GPUs and were checked without them, where another node's GPUs can be used.

    Such a node passes all checks on its processors, and the next attempt fails on it. Where no node can use
    its GPUs, the job may not want them.
    """
    gpus = {n.name: n.hello.gpu_count for n in nodes if n.hello.gpu_count > 0 and reports[n.name].get("ok")}
    device = {name: str(reports[name].get("device", "")) for name in gpus}
    others = sorted(name for name in gpus if device[name] == "cuda")
    if not others:
        return {}
    return {
        name: f"self-check: none of its {gpus[name]} GPUs can be used, and those of {others[0]} can"
        for name in gpus
        if device[name] == "cpu"
    }


def _too_few_gpus(nodes: Sequence[Node], reports: Mapping[str, JsonObject]) -> dict[str, str]:
    """Nodes with fewer GPUs than ranks, where another one of the same kind has enough.

    Where ranks take turns on GPUs there need not be one for each.
    """
    own = [n for n in nodes if reports[n.name].get("gpus") and not n.hello.devices]
    counts = {n.name: len(reports[n.name]["gpus"]) for n in own}
    enough = {
        (n.hello.nproc_per_node, _kind(reports[n.name])): n.name
        for n in own
        if counts[n.name] >= n.hello.nproc_per_node
    }
    return {
        n.name: f"self-check: CUDA lists {counts[n.name]} GPUs for {n.hello.nproc_per_node} ranks, "
        f"and {counts[other]} on {other}"
        for n in own
        if counts[n.name] < n.hello.nproc_per_node
        and (other := enough.get((n.hello.nproc_per_node, _kind(reports[n.name]))))
    }


def _kind(report: JsonObject) -> str:
    """What kind of machine it is, whatever the number of its GPUs."""
    return re.sub(r"\b\d+ x ", "", str(report.get("kind", "")))


async def _self_check(node: Node, policy: Policy, ids: Ids, level: Level | None) -> Reply:
    """One node alone. Its GPUs and its ports send to each other where the level asks for that.

    A node that is not ready yet is asked again.
    """
    together = level is not None and level.whole_node
    more_s = (GPUS_S if _has_gpus(node) else 0.0) + (WHOLE_NODE_S if together else 0.0)
    reply = Reply(id=0, node=node.name)
    for _ in range(READY_TRIES):
        command = SelfCheck(
            id=ids(), seconds=policy.self_check_s, whole_node=together, group_timeout_s=GROUP_TIMEOUT_S
        )
        reply = await node.ask(command, policy.reply_timeout_s + more_s)
        if reply.error or not reply.data.get("not_ready"):
            return reply
        await asyncio.sleep(READY_AGAIN_S)
    return replace(reply, error=str(reply.data["not_ready"]))


def _has_gpus(node: Node) -> bool:
    return bool(node.hello.gpus) or node.hello.gpu_count > 0


@dataclass(frozen=True, kw_only=True)
class _Store:
    """A rendezvous store and the node that hosts it."""

    node: str
    address: str
    port: int


class _Rounds:
    """Rounds of all-gathers. The groups of a round run at the same time and meet at one rendezvous store.

    While no group has passed, each round has its store on another node: a node that nobody reaches would make
    every group fail. So it is after a round in which a member did not reach the store. `failed` maps nodes
    that could not host a store to the reason, `unreached` those that lost their connection to what was asked
    of them.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        policy: Policy,
        ids: Ids,
        store_job: str,
        now_s: Callable[[], float],
    ) -> None:
        self._nodes = {n.name: n for n in nodes}
        self._policy, self._ids, self._store_job, self._now_s = policy, ids, store_job, now_s
        outward = [node for node in nodes if not is_loopback(node.hello.address)]
        self._hosts = itertools.cycle(outward or nodes)  # one beside the hub may say an address of its own
        self._setup_s = GPU_SETUP_S if any(map(_has_gpus, nodes)) else 0.0
        self._slowest_s: float | None = None
        self.failed: dict[str, str] = {}
        self.unreached: dict[str, str] = {}

    async def run(self, check: NodeCheck, level: Level) -> None:
        """Run rounds until nothing is open, or the time of the level is up.

        With GPUs there is more time for as many rounds as a faulty node must fail in.
        """
        end_s = self._now_s() + level.limit_s + level.failures * self._setup_s
        store = await self._host_store(end_s)
        for number in itertools.count():
            groups = check.next_round()
            timeout_s = self._timeout_s(level, end_s - self._now_s())
            if store is None or not groups or timeout_s < LEAST_ROUND_S:
                return
            command = functools.partial(
                PairCheck,
                store_address=store.address,
                store_port=store.port,
                timeout_s=timeout_s,
                payload_bytes=level.payload_bytes,
            )
            results = await asyncio.gather(*(self._gather(g, command, store.node, number) for g in groups))
            check.take(results)
            if not check.any_passed or any(result.unreached for result in results):
                store = await self._host_store(end_s)

    def _timeout_s(self, level: Level, left_s: float) -> float:
        """How long a group of the next round may take, of `left_s`.

        Groups that passed show how long is patient enough. Where time is short, two more rounds share what
        the first one left of the level's time.
        """
        first_s = self._policy.pair_timeout_s
        if self._slowest_s is None:
            return min(self._setup_s + first_s, left_s)
        share_s = min(first_s, (level.limit_s - first_s) / 2)
        least_s = self._setup_s + max(LEAST_TIMEOUT_S, share_s)
        most_s = max(self._setup_s + first_s, TELLING * self._slowest_s)
        return min(max(least_s, min(most_s, PATIENCE * self._slowest_s)), left_s)

    async def _host_store(self, end_s: float) -> _Store | None:
        """Start a rendezvous store on the next node that can. None if no node can, or the time is up."""
        for _ in range(len(self._nodes)):
            if self._now_s() >= end_s:
                return None
            host = next(self._hosts)
            if host.name not in self.failed and host.name not in self.unreached:
                command = HostStore(id=self._ids(), job=self._store_job)
                reply = await host.ask(command, self._policy.reply_timeout_s)
                if not reply.error:
                    return _Store(node=host.name, address=host.hello.address, port=int(reply.data["port"]))
                kept = self.failed if was_reached(reply) else self.unreached
                kept[host.name] = f"pairwise store: {reply.error}"
        return None

    async def _gather(
        self, members: Group, command: Callable[..., PairCheck], store: str, number: int
    ) -> GroupResult:
        """One group's all-gather. Every member gets the command at once."""
        prefix, reduce = f"{number}:{members[0]}", self._under_one_switch(members)
        commands = [command(id=self._ids(), members=members, prefix=prefix, reduce=reduce) for _ in members]
        answers = await asyncio.gather(
            *(self._asked(self._nodes[n], c) for n, c in zip(members, commands, strict=True))
        )
        replies = [reply for reply, _ in answers]
        self.unreached |= {r.node: f"pairwise check: {r.error}" for r in replies if not was_reached(r)}
        failed_s = [seconds for reply, seconds in answers if not _passed(reply)]
        took_s = min(failed_s, default=max(seconds for _, seconds in answers))
        if not failed_s:
            self._slowest_s = max(self._slowest_s or 0.0, took_s)
        given_up = bool(failed_s) and took_s >= GIVEN_UP_SHARE * commands[0].timeout_s
        return replace(_result(members, replies, store, number), took_s=took_s, given_up=given_up)

    async def _asked(self, node: Node, command: PairCheck) -> tuple[Reply, float]:
        """The reply of one member, and how long it took in seconds."""
        began_s = self._now_s()
        reply = await node.ask(command, command.timeout_s + MARGIN_S)
        return reply, self._now_s() - began_s

    def _under_one_switch(self, members: Group) -> bool:
        """Whether these are neighbours, which do all-reduces as well."""
        switches = {self._nodes[name].hello.switch for name in members}
        return len(switches) == 1 and "" not in switches


def _result(members: Group, replies: Sequence[Reply], store: str, number: int) -> GroupResult:
    """What the members of a group say together."""
    errors = [f"{r.node}: {_error(r) or 'failed'}" for r in replies if not _passed(r)]
    return GroupResult(
        members=members,
        ok=not errors,
        seconds=max(float(r.data.get("seconds", 0.0)) for r in replies),
        error=next(iter(errors), ""),
        round=number,
        store=store,
        own_times_s={r.node: _own_times_s(r.data) for r in replies},
        unreached=tuple(r.node for r in replies if r.data.get("store_unreachable")),
        busy=tuple(r.node for r in replies if not _passed(r) and used_by_others(_error(r))),
        gpus={r.node: str(r.data["gpu"]) for r in replies if r.data.get("gpu")},
    )


def _own_times_s(data: JsonObject) -> dict[str, float]:
    """A member's own times by measure. An agent of an earlier version reports none."""
    names = {"compute": "compute_s", "compute_mean": "compute_mean_s"}
    return {measure: float(data[key]) for measure, key in names.items() if data.get(key)}


def _error(reply: Reply) -> str:
    return reply.error or str(reply.data.get("error") or "")


def _passed(reply: Reply) -> bool:
    return not reply.error and bool(reply.data.get("ok", False))
