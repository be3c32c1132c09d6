"""All checks that one machine can run by itself, for `pulsetrain diagnose`."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from pulsetrain.core.errors import UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.diagnostics import (
    all_gather,
    all_to_all,
    gpu_pairs,
    local_group,
    own_ports,
    own_rdma,
    selfcheck,
)
from pulsetrain.diagnostics.local_group import MemberReport
from pulsetrain.diagnostics.measurement import CheckRow, Report, used_by_others

GROUP_TIMEOUT_S = 60.0
"""of which members wait for each other for half: drivers and NCCL may need 20 s on a cold machine"""


class HostReport(Report):
    """The report of one machine, with its name, and the rate of each pair of its GPUs."""

    host: str
    pairs: list[JsonObject]


def run(*, seconds: float, device: str = "auto", rdma: Sequence[JsonObject] = ()) -> HostReport:
    """Run the self-check for about `seconds`, and an all-to-all and an all-gather among processes.

    There is a process for each GPU, at least two. Network ports send to each other, too, and so do those of
    `rdma` (`own_rdma`). These checks are added to the report of `selfcheck.run`. Raises `UsageError` for
    `seconds` out of range and for an unknown device.
    """
    if not 0 < seconds <= 600:
        raise UsageError(f"seconds = {seconds}: allowed above 0, at most 600")
    selfcheck.refuse_unknown(device)
    alone = device == "cpu"
    size = max(local_group.LEAST_MEMBERS, 0 if alone else local_group.gpu_count())
    exchanged, gathered = (
        local_group.run(work, size=size, timeout_s=GROUP_TIMEOUT_S, processors_only=alone)
        for work in (all_to_all.run, all_gather.run)
    )  # these fork, so before any thread or CUDA context
    report = selfcheck.run(seconds=seconds, device=device)
    between_gpus = gpu_pairs.checks(exchanged)
    checks = [
        *report["checks"],
        *(check.row() for check in selfcheck.guarded("own_ports", lambda: own_ports.checks(seconds))),
        *(check.row() for check in selfcheck.guarded("own_rdma", lambda: own_rdma.checks(rdma, seconds))),
        *(check.row() for check in between_gpus),
        _all_gather_row(gathered),
    ]
    failed = [check["check"] for check in checks if not check["ok"]]
    return HostReport(
        host=socket.gethostname(),
        ok=not failed,
        failed=failed,
        busy=[*report["busy"], *(check.name for check in between_gpus if check.busy)],
        device=report["device"],
        kind=report["kind"],
        gpus=report["gpus"],
        seconds=report["seconds"],
        checks=checks,
        pairs=[vars(pair) for pair in gpu_pairs.pairs(exchanged)],
    )


def _all_gather_row(answers: list[MemberReport]) -> CheckRow:
    named = [(str(a.get("gpu") or f"member {i}"), a) for i, a in enumerate(answers)]
    errors = [f"{name}: {a.get('error')}" for name, a in named if not a["ok"]]
    rates = [a.get("busbw_bytes_per_s", 0.0) for a in answers]
    gpus = [str(a["gpu"]) for a in answers if a.get("gpu")]
    busy = [error for error in errors if used_by_others(error)]
    return CheckRow(
        check="all_gather",
        ok=not errors or bool(busy),
        value=min((r for r in rates if isinstance(r, float)), default=0.0),
        unit="B/s",
        limit=None,
        detail="; ".join(f"not measurable: {error}" for error in busy)
        or "; ".join(errors)
        or ", ".join([str(answers[0].get("backend", "")), *gpus]),
    )


def rows_for_people(report: Report) -> list[dict[str, str]]:
    """Return the checks as table cells, `value` and `limit` with a decimal prefix."""
    return [
        {
            "check": check["check"],
            "result": "ok" if check["ok"] else "FAILED",
            "value": quantity(check["value"], check["unit"]),
            "limit": "" if not check["limit"] else f">= {quantity(check['limit'], check['unit'])}",
            "detail": check["detail"],
        }
        for check in report["checks"]
    ]


def quantity(value: float, unit: str) -> str:
    """Format a number with its unit.

    >>> quantity(112.6e9, "FLOP/s"), quantity(0, "errors")
    ('112.6 GFLOP/s', '0 errors')
    """
    if not unit.endswith("/s"):
        return f"{value:g} {unit}".strip()
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.1f} {prefix}{unit}"
    return f"{value:.1f} {unit}"
