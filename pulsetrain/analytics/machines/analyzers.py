"""The analyzers of machines over the store: ports, GPUs, kernel logs and ranks' logs of one attempt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from pulsetrain.analytics.machines import clock_drop, gpu_health, hardware, logs, network, network_ports
from pulsetrain.analytics.machines import rule_matches as rules
from pulsetrain.analytics.machines.job_hardware import JobHardware
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, Verdict
from pulsetrain.records.kernel_log import READABLE, KernelLine
from pulsetrain.stream.queries import machines
from pulsetrain.stream.queries.queryable import AttemptSteps, Queryable

MARGIN_NS = 60 * 1_000_000_000  # a cause is often logged before the step that it slows, or after it
LIVE_NS = 600 * 1_000_000_000
"""Of a running job's newest steps, so much time up to the end of the last one is looked at."""
CLOCKS_NS = 600 * 1_000_000_000
MOST_CLOCKS = 500_000
"""Samples of clocks that are read of the time before `MARGIN_NS`."""
LIVE_LINES, SCAN_LINES = 2_000, 50_000


@dataclass(frozen=True, kw_only=True)
class MachineSource:
    """What an analyzer of machines may ask: the store, and the time of some steps of an attempt.

    `scan`: the past is searched. Otherwise the time ends now. `without_steps` is the time of an attempt that
    has no step.
    """

    store: Queryable
    steps: AttemptSteps
    now_ns: int
    scan: bool = False
    without_steps: machines.AttemptTime | None = None

    @cached_property
    def during(self) -> machines.AttemptTime:
        """From a minute before the first step to a minute after the last one.

        Where the past is not searched it ends now, and begins no sooner than `LIVE_NS` before the end of the
        last step. The newest steps of a job with long ones are days, and what a machine did then is over.
        """
        if self.without_steps is not None:
            return self.without_steps
        begin, end = machines.extent(self.store, self.steps)
        return machines.AttemptTime(
            job=self.steps.job,
            attempt=self.steps.attempt,
            from_ns=begin - MARGIN_NS if self.scan else max(begin - MARGIN_NS, end - LIVE_NS),
            to_ns=end + MARGIN_NS if self.scan else max(self.now_ns, end),
        )


def ports(source: MachineSource) -> list[Verdict]:
    """`network.find` over the RDMA ports and network interfaces of the attempt's nodes."""
    table = machines.changing_metrics(source.store, source.during, ("rdma_", "nic_"))
    if not table.num_rows:
        reason = "no sample of an RDMA port or a network interface"
        return [Inconclusive(analyzer=network.NAME, reason=reason, blind=True)]
    starts_ns = machines.step_starts(source.store, source.steps)
    known = network_ports.ports(table)
    down = set(network.down_throughout(known))
    was_up_ns = machines.ports_up_before(source.store, source.during) if down else {}
    return network.find(
        known,
        now_ns=source.now_ns,
        job=source.steps.job,
        steps_ns=starts_ns,
        was_up_ns={name: at_ns for name, at_ns in was_up_ns.items() if name in down},
    )


def gpus(source: MachineSource) -> list[Verdict]:
    """`gpu_health.find` over the GPUs of the attempt's nodes, with the limits of their models.

    Clocks are looked at over some minutes: what is usual is not forgotten because a job was launched again.
    """
    table = machines.metrics(source.store, source.during, "gpu_")
    if not table.num_rows:
        return gpu_health.find(table, now_ns=source.now_ns, job=source.steps.job)
    models = JobHardware.read(source.store, source.steps).by_uuid
    clocks = None if source.scan else _clocks(source, table)
    return gpu_health.find(table, now_ns=source.now_ns, job=source.steps.job, models=models, clocks=clocks)


def _clocks(source: MachineSource, table: pa.Table) -> pa.Table:
    """Samples of clocks of the last `CLOCKS_NS`, of fewer where there are many GPUs."""
    gpus = max(1, len(pc.unique(table["device"])))
    past_ns = min(CLOCKS_NS, MOST_CLOCKS * 1_000_000_000 // (gpus * len(clock_drop.METRICS)))
    during = replace(source.during, from_ns=min(source.during.from_ns, source.now_ns - past_ns))
    return machines.metrics_named(source.store, during, clock_drop.METRICS)


def kernel(source: MachineSource) -> list[Verdict]:
    """`hardware.read` over the kernel log of each of the attempt's nodes.

    No line is healthy where an agent says that it reads the log, and blind where none does.
    """
    table = machines.kernel_log(source.store, source.during)
    by_node: dict[str, list[KernelLine]] = {}
    for row in table.to_pylist():
        line = KernelLine(message=row["message"], ts_ns=row["ts_ns"], wall=True)
        by_node.setdefault(row["node"], []).append(line)
    if not by_node:
        quiet = machines.nodes_with_metric(source.store, source.during, READABLE)
        numbers = {"nodes": quiet, "lines": 0}
        return [Healthy(analyzer=hardware.NAME, numbers=numbers)] if quiet else hardware.read([])
    uuids = JobHardware.read(source.store, source.steps).uuids
    verdicts: list[Verdict] = list(_kernel_findings(by_node, source.steps.job, uuids))
    seen = {"nodes": len(by_node), "lines": table.num_rows}
    return verdicts or [Healthy(analyzer=hardware.NAME, numbers=seen)]


def _kernel_findings(
    by_node: Mapping[str, list[KernelLine]], job: str, uuids: Mapping[str, Mapping[str, str]]
) -> Iterator[Finding]:
    for node, lines in sorted(by_node.items()):
        for verdict in hardware.read(lines, node=node, job=job, uuids=uuids.get(node)):
            if isinstance(verdict, Finding):
                yield verdict


def rank_logs(source: MachineSource) -> list[Verdict]:
    """`logs.find` over the ranks' lines. While the job runs, only warnings and worse are read."""
    table = machines.rank_logs(
        source.store,
        source.during,
        warnings_only=not source.scan,
        limit=SCAN_LINES if source.scan else LIVE_LINES,
    )
    if not source.scan and not table.num_rows:
        return [Healthy(analyzer=logs.NAME, numbers={"lines": 0})]
    return logs.find(table, now_ns=source.now_ns, job=source.steps.job, attempt=source.steps.attempt)


def rule_matches(source: MachineSource) -> list[Verdict]:
    """`rule_matches.find` over what the agents' log rules matched."""
    table = machines.rule_matches(source.store, source.during)
    now_ns = 0 if source.scan else source.now_ns
    return rules.find(table, now_ns=now_ns, job=source.steps.job, attempt=source.steps.attempt)
