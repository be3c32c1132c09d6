"""What samples of GPUs tell without help of the script: throttling, memory errors, slow buses, hangs."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from pulsetrain.analytics.machines import clock_drop
from pulsetrain.analytics.machines.gpu_rules import RULES, GpuConfig, GpuFault
from pulsetrain.analytics.machines.gpu_samples import Gpu, gpus
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, Verdict

NAME = "gpu_health"


def find(
    table: pa.Table,
    *,
    now_ns: int,
    job: str = "",
    models: Mapping[str, str] | None = None,
    config: GpuConfig | None = None,
    clocks: pa.Table | None = None,
) -> list[Verdict]:
    """Findings of kind `throttle`, `gpu_fault`, `gpu_hang`, `pcie_degraded` and `link_errors` from `metrics`.

    `models` names the models of GPUs by UUID. `Inconclusive` and blind where no GPU was sampled.
    `clocks` are samples of clocks over a longer time. None: those of `table`.

    >>> columns = {"node": ["n1"], "device": ["GPU-7"], "name": ["gpu_remapped_rows_failed"], "value": [1.0]}
    >>> table = pa.table({**columns, "ts": pa.array([0], pa.timestamp("ns", "UTC"))})
    >>> [finding] = find(table, now_ns=0)
    >>> finding.summary
    'n1/GPU-7 could not remap a memory row'
    """
    config = config or GpuConfig()
    sampled = gpus(table, models)
    if not sampled:
        return [Inconclusive(analyzer=NAME, reason="no sample of a GPU", blind=True)]
    faults = [(gpu, fault) for gpu in sampled for rule in RULES if (fault := rule(gpu, config)) is not None]
    throttled = {gpu.name for gpu, fault in faults if fault.kind == "throttle"}
    slower = clock_drop.find(sampled if clocks is None else gpus(clocks, models))
    faults += [(gpu, slower[gpu.name]) for gpu in sampled if gpu.name in slower.keys() - throttled]
    verdicts: list[Verdict] = [_finding(gpu, fault, now_ns, job) for gpu, fault in faults]
    return verdicts or [Healthy(analyzer=NAME, numbers={"gpus": len(sampled)})]


def _finding(gpu: Gpu, fault: GpuFault, now_ns: int, job: str) -> Finding:
    return Finding(
        ts_ns=now_ns,
        job=job,
        attempt=-1,
        kind=fault.kind,
        subject_type="gpu",
        subject=gpu.name,
        severity=fault.severity,
        confidence=fault.confidence,
        summary=f"{gpu.name} {fault.summary}",
        evidence={
            "query": "metrics gpu_*",
            "node": gpu.node,
            "uuid": gpu.uuid,
            "suggested_action": fault.action,
            **fault.evidence,
        },
    )
