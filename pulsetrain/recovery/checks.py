"""The check before each relaunch: self-check on every node, and the pairwise all-gather where asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pulsetrain.core.json import JsonObject
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
    """`failed` maps a node to the reason. `reports` holds what each node measured."""

    failed: Mapping[str, str]
    reports: Mapping[str, JsonObject]
    pairs: Sequence[pairwise.PairResult] = field(default_factory=tuple)

    def detail(self) -> dict[str, object]:
        """Return the report as the detail of a `self_check` event. Slow nodes are a note, not a verdict."""
        rows = {node: data.get("checks", ()) for node, data in self.reports.items()}
        return {
            "failed": dict(self.failed),
            "reports": dict(self.reports),
            "pairs": [pair.row() for pair in self.pairs],
            "slow": {"checks": slow_checks(rows), "all_gathers": slow_all_gathers(self.pairs)},
        }


async def run(nodes: Sequence[Node], policy: Policy, ids: Ids, *, thorough: bool) -> CheckReport:
    """Check `nodes`. `thorough` adds the pairwise rounds among those that pass the self-check."""
    failed, reports = await _self_checks(nodes, policy, ids)
    healthy = [n for n in nodes if n.name not in failed]
    if not thorough or len(healthy) < 2:
        return CheckReport(failed=failed, reports=reports)
    host = healthy[0]
    store = await host.ask(HostStore(id=ids(), job="pairwise"), policy.reply_timeout_s)
    if store.error:
        reason = f"pairwise store: {store.error}"
        return CheckReport(failed={**failed, host.name: reason}, reports=reports)
    check = _PairChecks(healthy, (host.hello.address, int(store.data["port"])), policy, ids)
    pairs = await check.run()
    return CheckReport(failed=failed | pairwise.faulty(pairs), reports=reports, pairs=pairs)


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


class _PairChecks:
    """Rounds of all-gathers in small groups, which meet at the rendezvous store `address`."""

    def __init__(self, nodes: Sequence[Node], address: tuple[str, int], policy: Policy, ids: Ids) -> None:
        self._nodes = {n.name: n for n in nodes}
        self._address, self._policy, self._ids = address, policy, ids

    async def run(self) -> list[pairwise.PairResult]:
        """Round one pairs neighbours. Each later round pairs suspects with nodes known to be good."""
        results: list[pairwise.PairResult] = []
        groups = pairwise.round_one(sorted(self._nodes))
        for number in range(ROUNDS):
            results += await asyncio.gather(
                *(self._group(members, f"{number}:{i}") for i, members in enumerate(groups))
            )
            groups = pairwise.round_two(results) if number == 0 else pairwise.next_round(results)
            if not groups or (number > 0 and not pairwise.undecided(results)):
                break
        return results

    async def _group(self, members: tuple[str, ...], prefix: str) -> pairwise.PairResult:
        """One group's all-gather. Every member gets the command at once."""
        limit_s = self._policy.pair_timeout_s
        replies = await asyncio.gather(
            *(self._nodes[name].ask(self._command(members, prefix), limit_s + MARGIN_S) for name in members)
        )
        errors = [
            f"{r.node}: {r.error or r.data.get('error') or 'failed'}" for r in replies if not _passed(r)
        ]
        seconds = max(float(r.data.get("seconds", limit_s)) for r in replies)
        error = next(iter(errors), "")
        return pairwise.PairResult(members=members, ok=not errors, seconds=seconds, error=error)

    def _command(self, members: tuple[str, ...], prefix: str) -> PairCheck:
        return PairCheck(
            id=self._ids(),
            members=members,
            store_address=self._address[0],
            store_port=self._address[1],
            prefix=prefix,
            timeout_s=self._policy.pair_timeout_s,
        )


def _passed(reply: Reply) -> bool:
    return not reply.error and bool(reply.data.get("ok", False))
