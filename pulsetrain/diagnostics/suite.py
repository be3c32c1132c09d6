"""All checks that one machine can run by itself, for `pulsetrain diagnose`."""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import TypeAlias

from pulsetrain.core.errors import UsageError
from pulsetrain.diagnostics import all_gather, selfcheck
from pulsetrain.diagnostics.measurement import CheckRow, Report

PAIR_TIMEOUT_S = 20.0

MemberReport: TypeAlias = Mapping[str, object]
"""Fields of `all_gather.GatherReport`; only `ok` and `error` if the member did not answer."""


class HostReport(Report):
    """The report of one machine, with its name."""

    host: str


def run(*, seconds: float, device: str = "auto") -> HostReport:
    """Run an all-gather between two processes of this machine, then the self-check for about `seconds`.

    The check `all_gather` is added to the report of `selfcheck.run`. Raises `UsageError` for `seconds` out of
    range and for an unknown device.
    """
    if not 0 < seconds <= 600:
        raise UsageError(f"seconds = {seconds}: allowed above 0, at most 600")
    pair = _all_gather_row(loopback_pair(PAIR_TIMEOUT_S))  # forks, so before any thread or CUDA context
    report = selfcheck.run(seconds=seconds, device=device)
    failed = [*report["failed"], *([] if pair["ok"] else ["all_gather"])]
    checks = [*report["checks"], pair]
    return HostReport(
        host=socket.gethostname(),
        ok=not failed,
        failed=failed,
        device=report["device"],
        kind=report["kind"],
        seconds=report["seconds"],
        checks=checks,
    )


def loopback_pair(timeout_s: float) -> list[MemberReport]:
    """Return the all-gather reports of two forked processes. A process that dies is a failed report."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(2)]
    members = [
        context.Process(target=_member, args=(index, store.port, timeout_s, writer), daemon=True)
        for index, (_, writer) in enumerate(pipes)
    ]
    for member in members:
        member.start()
    answers = [_answer(reader, timeout_s * 2) for reader, _ in pipes]
    for member in members:
        member.join(timeout=2)
        if member.is_alive():
            member.kill()
            member.join()
    return answers


def _member(index: int, port: int, timeout_s: float, writer: Connection) -> None:
    writer.send(
        all_gather.run(
            index=index,
            size=2,
            store_address="127.0.0.1",
            store_port=port,
            prefix="diagnose",
            timeout_s=timeout_s,
        )
    )


def _answer(reader: Connection, timeout_s: float) -> MemberReport:
    if not reader.poll(timeout_s):
        return {"ok": False, "error": f"no answer within {timeout_s:g} s"}
    try:
        return dict(reader.recv())
    except EOFError:
        return {"ok": False, "error": "the process died"}


def _all_gather_row(answers: list[MemberReport]) -> CheckRow:
    errors = [f"member {i}: {a.get('error')}" for i, a in enumerate(answers) if not a["ok"]]
    rates = [a.get("busbw_bytes_per_s", 0.0) for a in answers]
    return CheckRow(
        check="all_gather",
        ok=not errors,
        value=min((r for r in rates if isinstance(r, float)), default=0.0),
        unit="B/s",
        limit=None,
        detail="; ".join(errors) or str(answers[0].get("backend", "")),
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
