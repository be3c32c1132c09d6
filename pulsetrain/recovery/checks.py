"""The check before each relaunch: self-check on every node, and rounds of all-gathers where asked for."""

from __future__ import annotations

import asyncio
import functools
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pulsetrain.core.json import JsonObject
from pulsetrain.diagnostics import faulty_nodes
from pulsetrain.diagnostics.compare import slow_all_gathers, slow_checks, slowest_beside_fastest
from pulsetrain.diagnostics.faulty_nodes import FaultVerdict
from pulsetrain.diagnostics.rounds import Group, GroupResult, passed
from pulsetrain.protocol.messages import HostStore, PairCheck, Reply, SelfCheck
from pulsetrain.recovery.nodes import Node
from pulsetrain.recovery.policy import Policy

Ids = Callable[[], int]

LIMIT_S = 10.0  # of all rounds together
LEAST_ROUND_S = 1.0  # an all-gather that takes longer than what is left is not begun
LEAST_TWICE = 4  # with fewer nodes a second time does not tell the members of a pair apart
MARGIN_S = 2.0  # for the way of a command and its reply


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """`failed` maps a node to the reason. `reports` holds what each node measured.

    `verdict` is what the rounds of all-gathers say, None where there were none.
    """

    failed: Mapping[str, str]
    reports: Mapping[str, JsonObject]
    groups: Sequence[GroupResult] = field(default_factory=tuple)
    verdict: FaultVerdict | None = None

    def detail(self) -> dict[str, object]:
        """Return the report as the detail of a `self_check` event. Slow nodes are a note, not a verdict."""
        rows = {node: data.get("checks", ()) for node, data in self.reports.items()}
        verdict = self.verdict or FaultVerdict()
        return {
            "failed": dict(self.failed),
            "reports": dict(self.reports),
            "pairs": [group.row() for group in self.groups],
            "links": [{"nodes": list(pair), "reason": why} for pair, why in verdict.links.items()],
            "inconclusive": verdict.reason,
            "slow": {"checks": slow_checks(rows), "all_gathers": slow_all_gathers(self.groups)},
        }


async def run(nodes: Sequence[Node], policy: Policy, ids: Ids, *, thorough: bool) -> CheckReport:
    """Check `nodes`. `thorough` adds rounds of all-gathers among those that pass the self-check."""
    failed, reports = await _self_checks(nodes, policy, ids)
    healthy = [n for n in nodes if n.name not in failed]
    if not thorough or len(healthy) < 2:
        return CheckReport(failed=failed, reports=reports)
    rounds = _Rounds(healthy, policy, ids)
    verdict = await rounds.run()
    return CheckReport(
        failed=failed | rounds.failed | dict(verdict.faulty),
        reports=reports,
        groups=rounds.results,
        verdict=verdict,
    )


async def _self_checks(
    nodes: Sequence[Node], policy: Policy, ids: Ids
) -> tuple[dict[str, str], dict[str, JsonObject]]:
    replies = await asyncio.gather(
        *(n.ask(SelfCheck(id=ids(), seconds=policy.self_check_s), policy.reply_timeout_s) for n in nodes)
    )
    failed: dict[str, str] = {}
    for node, reply in zip(nodes, replies, strict=True):
        if reply.error:
            failed[node.name] = f"self-check: {reply.error}"
        elif not reply.data.get("ok", False):
            failed[node.name] = f"self-check failed: {', '.join(reply.data.get('failed', []))}"
    return failed, {n.name: dict(r.data) for n, r in zip(nodes, replies, strict=True)}


@dataclass(frozen=True, kw_only=True)
class _Store:
    """A rendezvous store and the node that hosts it."""

    node: str
    address: str
    port: int


class _Rounds:
    """Rounds of all-gathers. The groups of a round run at the same time and meet at one rendezvous store.

    While no group has passed, each round has its store on another node: a node that nobody reaches would make
    every group fail. `failed` maps nodes that could not host a store to the reason.
    """

    def __init__(
        self, nodes: Sequence[Node], policy: Policy, ids: Ids, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._nodes = {n.name: n for n in sorted(nodes, key=lambda n: n.name)}
        self._policy, self._ids, self._now_s = policy, ids, now_s
        self._hosts = itertools.cycle(list(self._nodes.values()))
        self.failed: dict[str, str] = {}
        self.results: list[GroupResult] = []

    async def run(self) -> FaultVerdict:
        """Run rounds until nothing is open, or the time is up."""
        end_s = self._now_s() + LIMIT_S
        store = await self._host_store()
        for number in itertools.count():
            groups = self._next_groups(number)
            timeout_s = min(self._policy.pair_timeout_s, end_s - self._now_s() - MARGIN_S)
            if store is None or not groups or timeout_s < LEAST_ROUND_S:
                break
            self.results += await asyncio.gather(
                *(self._gather(group, store, number, timeout_s) for group in groups)
            )
            if not passed(self.results):
                store = await self._host_store()
        return faulty_nodes.judge(list(self._nodes), self.results)

    def _next_groups(self, number: int) -> list[Group]:
        """What is to be asked next. Good nodes that are free in the second round get a second time there."""
        groups = faulty_nodes.next_round(list(self._nodes), self.results)
        if number != 1 or len(self._nodes) < LEAST_TWICE:
            return groups
        busy = {node for group in groups for node in group}
        return [*groups, *slowest_beside_fastest(self.results, self._nodes.keys() - busy)]

    async def _host_store(self) -> _Store | None:
        """Start a rendezvous store on the next node that can. None if no node can."""
        for _ in range(len(self._nodes)):
            host = next(self._hosts)
            if host.name not in self.failed:
                command = HostStore(id=self._ids(), job="pairwise")
                reply = await host.ask(command, self._policy.reply_timeout_s)
                if not reply.error:
                    return _Store(node=host.name, address=host.hello.address, port=int(reply.data["port"]))
                self.failed[host.name] = f"pairwise store: {reply.error}"
        return None

    async def _gather(self, members: Group, store: _Store, number: int, timeout_s: float) -> GroupResult:
        """One group's all-gather. Every member gets the command at once."""
        command = functools.partial(
            PairCheck,
            members=members,
            store_address=store.address,
            store_port=store.port,
            prefix=f"{number}:{members[0]}",
            timeout_s=timeout_s,
        )
        replies = await asyncio.gather(
            *(self._nodes[name].ask(command(id=self._ids()), timeout_s + MARGIN_S) for name in members)
        )
        errors = [
            f"{r.node}: {r.error or r.data.get('error') or 'failed'}" for r in replies if not _passed(r)
        ]
        return GroupResult(
            members=members,
            ok=not errors,
            seconds=max(float(r.data.get("seconds", timeout_s)) for r in replies),
            error=next(iter(errors), ""),
            round=number,
            store=store.node,
        )


def _passed(reply: Reply) -> bool:
    return not reply.error and bool(reply.data.get("ok", False))
