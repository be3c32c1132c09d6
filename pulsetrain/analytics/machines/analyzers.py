"""The analyzers of machines over the store: ports, GPUs, kernel logs and ranks' logs of one attempt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from pulsetrain.analytics.machines import gpu_health, hardware, logs, network
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, Verdict
from pulsetrain.records.kernel_log import KernelLine
from pulsetrain.stream.queries import machines
from pulsetrain.stream.queries.analysis import Queryable

MARGIN_NS = 60 * 1_000_000_000  # a cause is often logged before the step that it spoils, and after it
LIVE_LINES, SCAN_LINES = 2_000, 50_000


@dataclass(frozen=True, kw_only=True)
class Range:
    """Steps `since`..`until` of one attempt, and the time in which its machines are looked at.

    `scan`: the past is searched; otherwise the range ends now.
    """

    store: Queryable
    job: str
    attempt: int
    since: int
    until: int
    now_ns: int
    scan: bool = False

    def times(self) -> tuple[int, int]:
        """From a minute before the first step to a minute after the last one, or to now."""
        begin, end = machines.extent(self.store, self.job, self.attempt, self.since, self.until)
        return begin - MARGIN_NS, end + MARGIN_NS if self.scan else max(self.now_ns, end)


def ports(r: Range) -> list[Verdict]:
    """`network.find` over the RDMA ports and network interfaces of the attempt's nodes."""
    begin, end = r.times()
    tables = [
        machines.metrics(r.store, r.job, r.attempt, prefix, from_ns=begin, to_ns=end)
        for prefix in ("rdma_", "nic_")
    ]
    table = pa.concat_tables(tables)
    if not table.num_rows:
        reason = "no sample of an RDMA port or a network interface"
        return [Inconclusive(analyzer=network.NAME, reason=reason, blind=True)]
    steps = machines.step_starts(r.store, r.job, r.attempt, r.since, r.until)
    return network.find(table, now_ns=r.now_ns, job=r.job, steps_ns=steps)


def gpus(r: Range) -> list[Verdict]:
    """`gpu_health.find` over the GPUs of the attempt's nodes."""
    begin, end = r.times()
    table = machines.metrics(r.store, r.job, r.attempt, "gpu_", from_ns=begin, to_ns=end)
    return gpu_health.find(table, now_ns=r.now_ns, job=r.job)


def kernel(r: Range) -> list[Verdict]:
    """`hardware.read` over the kernel log of each of the attempt's nodes."""
    begin, end = r.times()
    table = machines.kernel_log(r.store, r.job, r.attempt, from_ns=begin, to_ns=end)
    by_node: dict[str, list[KernelLine]] = {}
    for row in table.to_pylist():
        line = KernelLine(message=row["message"], ts_ns=row["ts_ns"], wall=True)
        by_node.setdefault(row["node"], []).append(line)
    if not by_node:
        return hardware.read([])
    found: list[Verdict] = list(_kernel_findings(by_node, r.job))
    seen = {"nodes": len(by_node), "lines": table.num_rows}
    return found or [Healthy(analyzer=hardware.NAME, numbers=seen)]


def _kernel_findings(by_node: dict[str, list[KernelLine]], job: str) -> Iterator[Finding]:
    for node, lines in sorted(by_node.items()):
        for verdict in hardware.read(lines, node=node, job=job):
            if isinstance(verdict, Finding):
                yield verdict


def rank_logs(r: Range) -> list[Verdict]:
    """`logs.find` over the ranks' lines; while the job runs only over its complaints, to stay cheap."""
    begin, end = r.times()
    table = machines.rank_logs(
        r.store,
        r.job,
        r.attempt,
        complaints=not r.scan,
        from_ns=begin,
        to_ns=end,
        limit=SCAN_LINES if r.scan else LIVE_LINES,
    )
    if not r.scan and not table.num_rows:
        return [Healthy(analyzer=logs.NAME, numbers={"lines": 0})]
    return logs.find(table, now_ns=r.now_ns, job=r.job, attempt=r.attempt)
