"""The check before each relaunch: self-check on every node, and the pairwise all-gather where asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pulsetrain.diagnostics import pairwise
from pulsetrain.diagnostics.compare import slow_all_gathers, slow_checks
from pulsetrain.protocol.messages import HostStore, PairCheck, Reply, SelfCheck
from pulsetrain.recovery.nodes import Node
from pulsetrain.recovery.policy import Policy

Ids = Callable[[], int]

ROUNDS = 3
MARGIN_S = 2.0


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """`failed` maps a node to the reason; `reports` holds what each node measured."""

    failed: Mapping[str, str]
    reports: Mapping[str, Any]
    pairs: Sequence[pairwise.PairResult] = field(default_factory=tuple)

    def detail(self) -> dict[str, Any]:
        """Return the report as the detail of a `self_check` event. Slow nodes are a note, not a verdict."""
        rows = {node: data.get("checks", ()) for node, data in self.reports.items()}
        return {
            "failed": dict(self.failed),
            "reports": dict(self.reports),
            "pairs": [pair.row() for pair in self.pairs],
            "slow": {"checks": slow_checks(rows), "all_gathers": slow_all_gathers(self.pairs)},
        }


async def run(nodes: Sequence[Node], policy: Policy, ids: Ids, *, thorough: bool) -> CheckReport:
    """Check `nodes`; `thorough` adds the two pairwise rounds among those that pass the self-check."""
    failed, reports = await _self_checks(nodes, policy, ids)
    healthy = [n for n in nodes if n.name not in failed]
    pairs: list[pairwise.PairResult] = []
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
) -> tuple[dict[str, str], list[pairwise.PairResult]]:
    """Round one pairs neighbours; each later round puts suspects beside nodes known to be good."""
    by_name = {n.name: n for n in nodes}
    host = nodes[0]
    store = await host.ask(HostStore(id=ids(), job="pairwise"), policy.reply_timeout_s)
    if store.error:
        return {host.name: f"pairwise store: {store.error}"}, []
    where = (host.hello.address, int(store.data["port"]))
    results: list[pairwise.PairResult] = []
    groups = pairwise.round_one(sorted(by_name))
    for number in range(ROUNDS):
        done = await asyncio.gather(
            *(
                _pair([by_name[m] for m in g], f"{number}:{i}", where, policy, ids)
                for i, g in enumerate(groups)
            )
        )
        results.extend(done)
        groups = pairwise.round_two(results) if number == 0 else pairwise.next_round(results)
        if not groups or (number > 0 and not pairwise.undecided(results)):
            break
    return pairwise.faulty(results), results


async def _pair(
    members: Sequence[Node], prefix: str, where: tuple[str, int], policy: Policy, ids: Ids
) -> pairwise.PairResult:
    """One group's all-gather, asked of every member at once."""
    names = tuple(n.name for n in members)
    replies = await asyncio.gather(
        *(
            n.ask(_command(names, prefix, where, policy, ids()), policy.pair_timeout_s + MARGIN_S)
            for n in members
        )
    )
    errors = [f"{r.node}: {r.error or r.data.get('error') or 'failed'}" for r in replies if not _passed(r)]
    seconds = max(float(r.data.get("seconds", policy.pair_timeout_s)) for r in replies)
    return pairwise.PairResult(members=names, ok=not errors, seconds=seconds, error=next(iter(errors), ""))


def _command(
    names: tuple[str, ...], prefix: str, where: tuple[str, int], policy: Policy, number: int
) -> PairCheck:
    return PairCheck(
        id=number,
        members=names,
        store_address=where[0],
        store_port=where[1],
        prefix=prefix,
        timeout_s=policy.pair_timeout_s,
    )


def _passed(reply: Reply) -> bool:
    return not reply.error and bool(reply.data.get("ok", False))
