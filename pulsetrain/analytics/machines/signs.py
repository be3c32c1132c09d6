"""What the signs of a machine mean, and what is done about them. Signs in, findings out. Pure.

Xids and lines of the kernel's log have tables of their own (`hardware`). The other signs are in
tables/hardware_signs.toml. The response comes from `hardware_policy`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import cast

from pulsetrain.analytics.machines import hardware, policies
from pulsetrain.analytics.machines.hardware import FaultReport
from pulsetrain.analytics.machines.hardware_policy import Case, Choice, HardwarePolicy
from pulsetrain.analytics.machines.policies import Policies
from pulsetrain.analytics.verdict import Finding, Severity, SubjectType
from pulsetrain.protocol.messages import GpuIdentity, HardwareSign
from pulsetrain.records.kernel_log import KernelLine
from pulsetrain.recovery.response import Response

NAME = "hardware"
_SHARED = "no eviction: it may be of a card or disk that the job does not use"
_ORDER = {"info": 0, "warning": 1, "critical": 2}


@dataclass(frozen=True, kw_only=True)
class SignMeaning:
    """One row of hardware_signs.toml."""

    name: str
    kind: str
    severity: Severity
    confidence: float
    summary: str
    action: str
    source: str
    least_s: float = 0.0
    least_value: float = 0.0
    least_count: int = 0

    def worth_telling(self, sign: HardwareSign) -> bool:
        """Whether there is enough of it."""
        held_s = (sign.last_ns - sign.first_ns) / 1e9
        return held_s >= self.least_s and sign.value >= self.least_value and sign.count >= self.least_count


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What one node says of its hardware with its heartbeats."""

    node: str
    signs: Sequence[HardwareSign]
    gpus: Sequence[GpuIdentity] = ()


@dataclass(frozen=True, kw_only=True)
class Tables:
    """Everything that decides what a sign means and what is done about it."""

    policies: Policies
    responses: HardwarePolicy


@dataclass(frozen=True, kw_only=True)
class JobLook:
    """Whose machines are looked at, and when."""

    job: str
    attempt: int
    now_ns: int


@cache
def meanings() -> Mapping[str, SignMeaning]:
    """The rows of hardware_signs.toml by name."""
    text = files("pulsetrain.analytics").joinpath("tables/hardware_signs.toml").read_text()
    return {row["name"]: SignMeaning(**row) for row in tomllib.loads(text)["sign"]}


def judge(machine: Machine, tables: Tables, look: JobLook) -> list[Finding]:
    """Findings on one machine, the strictest response first. Each has `response` in its evidence.

    One finding for each kind of trouble of a device: the one with the strictest response.
    """
    reported = [sign for sign in machine.signs if sign.kind not in meanings()]
    found = [*_kernel(machine, reported, tables, look)]
    found += [
        _sign(machine, sign, tables, look)
        for sign in machine.signs
        if (meaning := meanings().get(sign.kind)) and meaning.worth_telling(sign)
    ]
    return _one_each(found)


def _one_each(findings: Iterable[Finding]) -> list[Finding]:
    """Of findings on the same trouble of a device the one that asks for most. The others are told with it."""
    ordered = sorted(findings, key=_weight, reverse=True)
    kept: dict[tuple[str, str], Finding] = {}
    for finding in ordered:
        first = kept.setdefault((finding.kind, finding.subject), finding)
        if first is not finding:
            also = [*first.evidence.get("also", []), finding.summary]
            kept[finding.kind, finding.subject] = replace(first, evidence={**first.evidence, "also": also})
    return list(kept.values())


def _weight(finding: Finding) -> tuple[int, int, int]:
    return Response(finding.evidence["response"]).rank, _ORDER[finding.severity], finding.ts_ns


# -- Xids, SXids, lines of the kernel's log ------------------------------------------------------------------


def _kernel(
    machine: Machine, signs: Sequence[HardwareSign], tables: Tables, look: JobLook
) -> Iterable[Finding]:
    uuids = {hardware.address(gpu.pci): gpu.uuid for gpu in machine.gpus if gpu.pci}
    by_report = {
        _key(report): (report, sign) for sign in signs if (report := _report(sign, tables)) is not None
    }
    kept = hardware.without_noise([report for report, _ in by_report.values()], tables.policies)
    for report in kept:
        _, sign = by_report[_key(report)]
        finding = hardware.finding_of(report, uuids, machine.node, look.job, tables.policies)
        choice = _capped(sign, tables.responses.choose(_case(report, finding, sign, tables)))
        yield _with_response(replace(finding, attempt=look.attempt), choice, machine.node, sign)


def _capped(sign: HardwareSign, choice: Choice) -> Choice:
    """A choice that evicts nobody for what may be another job's."""
    if sign.shared and choice.response.evicts:
        return replace(choice, response=Response.CORDON, source=f"{choice.source}; {_SHARED}")
    return choice


def _key(report: FaultReport) -> tuple[str, int, str]:
    return report.family, report.code, report.device


def _report(sign: HardwareSign, tables: Tables) -> FaultReport | None:
    """A sign in the form that the reader of the kernel's log makes of a line."""
    line = KernelLine(message=sign.text, ts_ns=sign.last_ns, wall=True)
    report = hardware.LineReader(tables.policies).read(line) if sign.text else None
    if report is None and sign.kind in ("xid", "sxid"):
        report = hardware.coded_report(sign.kind, sign.code, sign.device, sign.last_ns)
    if report is None:
        return None
    return replace(report, device=sign.device, first_ns=sign.first_ns, last_ns=sign.last_ns, count=sign.count)


def _case(report: FaultReport, finding: Finding, sign: HardwareSign, tables: Tables) -> Case:
    coded = report.family in ("xid", "sxid")
    table = tables.policies.sxid if report.family == "sxid" else tables.policies.xid
    policy = table.get(report.code) if coded else None
    return Case(
        on=report.family if coded else "kernel",
        code=report.code,
        name="" if coded else report.family,
        action=policy.action if policy else "",
        severity=finding.severity,
        text=report.rest,
        times_ns=sign.times_ns,
    )


# -- other signs ---------------------------------------------------------------------------------------------


def _sign(machine: Machine, sign: HardwareSign, tables: Tables, look: JobLook) -> Finding:
    meaning = meanings()[sign.kind]
    held_s = (sign.last_ns - sign.first_ns) / 1e9
    name = f"{machine.node}/{sign.device}" if sign.device else machine.node
    subject_type, subject = _subject(meaning.kind, machine.node, name)
    case = Case(
        on="sign",
        name=sign.kind,
        severity=meaning.severity,
        value=sign.value,
        held_s=held_s,
        times_ns=sign.times_ns,
    )
    choice = _capped(sign, tables.responses.choose(case))
    words = meaning.summary.format(value=sign.value, held=held_s, count=sign.count)
    links = sign.text if meaning.kind == "link_errors" else ""
    if links:
        words += f" on link {links}" if links.isdecimal() else f" on links {links}"
    finding = Finding(
        ts_ns=sign.last_ns,
        job=look.job,
        attempt=look.attempt,
        kind=meaning.kind,
        subject_type=subject_type,
        subject=subject,
        severity=meaning.severity,
        confidence=meaning.confidence,
        summary=f"{name} {words}" if sign.device else f"{name}: {words}",
        evidence={
            "query": "heartbeat",
            "sign": sign.kind,
            "uuid": sign.device if subject_type == "gpu" else "",
            "value": sign.value,
            "held_s": round(held_s, 3),
            "count": sign.count,
            "first_ns": sign.first_ns,
            "last_ns": sign.last_ns,
            **({"links": [int(link) for link in links.split(", ")]} if links else {}),
            "suggested_action": meaning.action.format(gpu=name, node=machine.node),
            "sign_source": meaning.source,
        },
    )
    return _with_response(finding, choice, machine.node, sign)


def _subject(kind: str, node: str, name: str) -> tuple[SubjectType, str]:
    if kind == "link_flap":
        return "link", name
    return ("node", node) if kind == "host_fault" or name == node else ("gpu", name)


def _with_response(finding: Finding, choice: Choice, node: str, sign: HardwareSign) -> Finding:
    """The finding with what is done about it. `onset_ns` is when the trouble that decides began."""
    evidence = {
        **finding.evidence,
        "node": node,
        "response": str(choice.response),
        "policy": choice.policy,
        "response_source": choice.source,
        "onset_ns": sign.first_ns,
    }
    return replace(finding, severity=_severity(finding.severity, choice.response), evidence=evidence)


def _severity(severity: Severity, response: Response) -> Severity:
    """What evicts a node is critical, what keeps it from being promoted at least a warning."""
    least = "critical" if response.evicts else "warning" if response is Response.CORDON else "info"
    return cast("Severity", max(severity, least, key=lambda s: _ORDER[s]))


def load_tables(policies_: Policies | None = None, responses: HardwarePolicy | None = None) -> Tables:
    """The tables of this version, or a site's."""
    from pulsetrain.analytics.machines.hardware_policy import load

    return Tables(policies=policies_ or policies.load(), responses=responses or load())
