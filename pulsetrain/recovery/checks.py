"""The check before each relaunch: self-check on every node, and the pairwise all-gather where asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pulsetrain.diagnostics import pairwise
from pulsetrain.recovery.nodes import Node
from pulsetrain.recovery.policy import Policy
from pulsetrain.stream.messages import HostStore, PairCheck, SelfCheck

Ids = Callable[[], int]


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """`failed` maps a node to the reason; `reports` holds what each node measured."""

    failed: Mapping[str, str]
    reports: Mapping[str, Any]
    pairs: Sequence[Mapping[str, Any]] = field(default_factory=tuple)

    def detail(self) -> dict[str, Any]:
        """The report as the detail of a `self_check` event."""
        return {"failed": dict(self.failed), "reports": dict(self.reports), "pairs": list(self.pairs)}


async def run(nodes: Sequence[Node], policy: Policy, ids: Ids, *, thorough: bool) -> CheckReport:
    """Check `nodes`; `thorough` adds the two pairwise rounds among those that pass the self-check."""
    failed, reports = await _self_checks(nodes, policy, ids)
    healthy = [n for n in nodes if n.name not in failed]
    pairs: list[dict[str, Any]] = []
    if thorough and len(healthy) > 1:
        faulty, pairs = await _pair_rounds(healthy, policy, ids)
        failed |= faulty
    return CheckReport(failed=failed, reports=reports, pairs=pairs)


async def _self_checks(
    nodes: Sequence[Node], policy: Policy, ids: Ids
) -> tuple[dict[str, str], dict[str, Any]]:
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


async def _pair_rounds(
    nodes: Sequence[Node], policy: Policy, ids: Ids
) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Round one pairs neighbours, round two pairs suspects with healthy nodes (systems of DLRover, D1)."""
    by_name = {n.name: n for n in nodes}
    host = nodes[0]
    store = await host.ask(HostStore(id=ids(), job="pairwise"), policy.reply_timeout_s)
    if store.error:
        return {host.name: f"pairwise store: {store.error}"}, []
    where = (host.hello.address, int(store.data["port"]))
    results: list[pairwise.PairResult] = []
    for plan in (pairwise.round_one, pairwise.round_two):
        groups = plan(sorted(by_name)) if plan is pairwise.round_one else pairwise.round_two(results)
        done = await asyncio.gather(*(_pair(g, by_name, where, policy, ids) for g in groups))
        results.extend(done)
    verdict = pairwise.judge(results)
    return verdict, [r.row() for r in results]
