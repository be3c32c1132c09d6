"""What the kernel log says of GPUs, switches and the machine itself.

Policies are data (`tables/`): what a code means, what to do, and the source. A code counts once for each GPU
however often it was printed. A code that a later one takes back does not count, nor do codes that come with
every job that ends.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pulsetrain.analytics.machines.policies import KernelRule, Policies, XidPolicy
from pulsetrain.analytics.machines.policies import load as load_policies
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, Severity, SubjectType, Verdict
from pulsetrain.core.errors import UsageError
from pulsetrain.records.kernel_log import USER_SPACE, KernelLine, parse_all

NAME = "kernel_log"
FALLEN_OFF_THE_BUS = 79
RECOVERY_ACTION = 154
KEPT_LINES = 3
_BDF = r"(?:(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}|00[0-9a-fA-F]{2}):[0-9a-fA-F]{2}"  # old drivers: 0002:00

_XID = re.compile(
    rf"NVRM:\s*Xid\s*\((?:PCI:)?\s*(?P<gpu>{_BDF})(?:\.\d)?[^)]*\)[^:]*:\s*(?P<code>\d+)\b,?\s*(?P<rest>.*)"
)
_SXID = re.compile(
    rf"SXid\s*\((?:PCI:)?\s*(?P<gpu>{_BDF})(?:\.\d)?[^)]*\)\s*:\s*(?P<code>\d+)\b,?\s*(?P<rest>.*)"
)
_UUID = re.compile(rf"NVRM: GPU at (?:PCI:)?(?P<gpu>{_BDF})(?:\.\d)?: (?P<uuid>GPU-[0-9a-f-]+)")
_FALLEN = re.compile(rf"NVRM: GPU (?P<gpu>{_BDF})(?:\.\d)?: GPU has fallen off the bus")
_FALLEN_GPU = re.compile(rf"NVRM: The NVIDIA GPU (?P<gpu>{_BDF})(?:\.\d)?")
_FALLEN_OFF = re.compile(r"fallen off the bus and is not responding to commands")
_PROCESS = re.compile(r"pid='?(?P<pid>\d+)'?(?:, name=(?P<name>[^,]+))?")
_RECOVERY = re.compile(r"changed from \S+ \((?P<before>[^)]*)\) to \S+ \((?P<after>[^)]*)\)")
_FATAL = re.compile(r"\b(Non-?fatal|Fatal)\b", re.IGNORECASE)
_SEVERITY_ORDER = {"info": 0, "warning": 1, "critical": 2}
_CONFIDENCE = {"critical": 0.95, "warning": 0.7, "info": 0.5}


NVLINK5 = range(144, 151)
"""Xids whose lines say "Fatal" or "Nonfatal". Source: NVIDIA Xid catalog 2025-10."""


@dataclass(frozen=True, kw_only=True)
class FaultReport:
    """One kind of trouble of one device, from all lines that report it. Times are nanoseconds."""

    family: str  # xid, sxid or the rule's name
    code: int
    device: str
    first_ns: int
    last_ns: int
    count: int = 1
    lines: tuple[str, ...] = ()
    rest: str = ""
    processes: frozenset[str] = frozenset()
    severity: Severity | None = None  # where the line itself tells it
    wall: bool = True  # times are UTC; otherwise since boot

    def merged(self, other: FaultReport) -> FaultReport:
        """This report and a later one as one."""
        worse = max((self.severity, other.severity), key=lambda s: _SEVERITY_ORDER.get(s or "", -1))
        return replace(
            self,
            first_ns=min(self.first_ns, other.first_ns),
            last_ns=max(self.last_ns, other.last_ns),
            count=self.count + other.count,
            lines=(self.lines + other.lines)[:KEPT_LINES],
            rest=other.rest if other.last_ns >= self.last_ns else self.rest,
            processes=self.processes | other.processes,
            severity=worse,
        )


@dataclass
class _Log:
    """What one pass over the lines gathers."""

    reader: LineReader
    reports: dict[tuple[str, int, str], FaultReport] = field(default_factory=dict)
    uuids: dict[str, str] = field(default_factory=dict)
    lines: int = 0

    def add(self, report: FaultReport) -> None:
        key = (report.family, report.code, report.device)
        before = self.reports.get(key)
        self.reports[key] = before.merged(report) if before else report


def read(
    lines: Iterable[KernelLine],
    *,
    node: str = "",
    job: str = "",
    policies: Policies | None = None,
    uuids: Mapping[str, str] | None = None,
) -> list[Verdict]:
    """Findings of kind `gpu_fault`, `host_fault` or `link_flap` from kernel log lines in order of time.

    Subjects are "NODE/GPU-uuid" where the log or `uuids` (by PCI address) names the UUID, else
    "NODE/PCI:address". Without `node` the part before the slash is missing. No line at all is blind, not
    healthy.

    >>> line = "NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus."
    >>> [finding] = read([KernelLine(message=line, ts_ns=0, wall=True)], node="n1")
    >>> finding.subject, finding.severity
    ('n1/PCI:0000:9b:00', 'critical')
    """
    policies = policies or load_policies()
    log = _Log(LineReader(policies), uuids=dict(uuids or {}))
    for line in sorted(lines, key=lambda line: (line.ts_ns, line.seq)):
        log.lines += 1
        _take(log, line, policies)
    if not log.lines:
        return [Inconclusive(analyzer=NAME, reason="no line of the kernel's log", blind=True)]
    reports = without_noise(list(log.reports.values()), policies)
    verdicts: list[Verdict] = [finding_of(r, log.uuids, node, job, policies) for r in reports]
    quiet = {"lines": log.lines, "dropped": len(log.reports) - len(reports)}
    return verdicts or [Healthy(analyzer=NAME, numbers=quiet)]


def read_file(path: Path, *, node: str = "", policies: Policies | None = None) -> list[Verdict]:
    """`read` of a file in any form that `records.kernel_log` knows. "-" is standard input.

    Raises `UsageError` where it cannot be read.
    """
    try:
        if str(path) == "-":
            text = sys.stdin.buffer.read().decode(errors="replace")
        else:
            text = path.read_bytes().decode(errors="replace")
    except OSError as error:
        raise UsageError(f"kernel log {path}: {error.strerror}") from error
    return read(parse_all(text.splitlines()), node=node, policies=policies)


# -- lines ------------------------------------------------------------------------------------------------


def _take(log: _Log, line: KernelLine, policies: Policies) -> None:
    if m := _UUID.search(line.message):
        log.uuids[address(m["gpu"])] = m["uuid"]
    report = log.reader.read(line)
    if report is not None:
        log.add(report)


class LineReader:
    """Reads lines one by one. One form of trouble takes three lines."""

    def __init__(self, policies: Policies) -> None:
        self._policies = policies
        self._falling = ""  # the GPU of the first line of a message that takes three

    def read(self, line: KernelLine) -> FaultReport | None:
        """What a line reports, None for nothing. What a process wrote counts only for `user_space` rules."""
        text = line.message
        if text.startswith(USER_SPACE):
            return self._by_rule(line, [rule for rule in self._policies.rules if rule.user_space])
        for family, pattern in (("xid", _XID), ("sxid", _SXID)):
            if (m := pattern.search(text)) and int(m["code"]):
                return _report(line, family, int(m["code"]), address(m["gpu"]), m["rest"])
        fallen = self._fallen(text)
        if fallen:
            return _report(line, "xid", FALLEN_OFF_THE_BUS, fallen, "GPU has fallen off the bus")
        return self._by_rule(line, self._policies.rules)

    def _by_rule(self, line: KernelLine, rules: Iterable[KernelRule]) -> FaultReport | None:
        for rule in rules:
            if m := rule.pattern.search(line.message):
                return _report(line, rule.name, 0, _device(m), "")
        return None

    def _fallen(self, text: str) -> str:
        """The GPU that fell off the bus by a line without an Xid. Empty: none. One form takes three lines."""
        if m := _FALLEN.search(text):
            return address(m["gpu"])
        if m := _FALLEN_GPU.search(text):
            self._falling = address(m["gpu"])
        if _FALLEN_OFF.search(text) and self._falling:
            fallen, self._falling = self._falling, ""
            return fallen
        return ""


def coded_report(family: str, code: int, device: str, ts_ns: int) -> FaultReport:
    """An Xid or SXid of which the driver tells the number alone.

    Where the line in the kernel's log says whether it was fatal, the number alone is a warning.
    """
    severity: Severity | None = "warning" if family == "xid" and code in NVLINK5 else None
    return FaultReport(
        family=family, code=code, device=device, first_ns=ts_ns, last_ns=ts_ns, severity=severity
    )


def address(text: str) -> str:
    """A PCI address as "0000:9b:00", whatever the line left out or added.

    >>> address("9B:00"), address("00000000:9b:00.0")
    ('0000:9b:00', '0000:9b:00')
    """
    parts = text.lower().partition(".")[0].split(":")
    domain = parts[0] if len(parts) == 3 else "0"
    return f"{int(domain, 16):04x}:{parts[-2][-2:]}:{parts[-1]}"


def _device(match: re.Match[str]) -> str:
    named = match.groupdict()
    return next((v for k, v in named.items() if k.startswith("device") and v), "")


def _report(line: KernelLine, family: str, code: int, device: str, rest: str) -> FaultReport:
    processes = {f"{m['name'] or '?'}[{m['pid']}]" for m in _PROCESS.finditer(rest)}
    fatal = _FATAL.search(rest) if family == "sxid" or code in NVLINK5 else None
    severity: Severity | None = None
    if fatal:
        severity = "critical" if fatal[1].lower() == "fatal" else "info"
    return FaultReport(
        family=family,
        code=code,
        device=device,
        first_ns=line.ts_ns,
        last_ns=line.ts_ns,
        lines=(line.message[:400],),
        rest=rest,
        processes=frozenset(processes),
        severity=severity,
        wall=line.wall,
    )


# -- noise ------------------------------------------------------------------------------------------------


def without_noise(reports: Sequence[FaultReport], policies: Policies) -> list[FaultReport]:
    """Return the reports without those that a later one took back, and without clean-up.

    Clean-up follows another fault, or comes with every job that ends: then it is on more than one GPU.
    """
    xids = [r for r in reports if r.family == "xid"]
    kept: list[FaultReport] = []
    for report in reports:
        policy = policies.xid.get(report.code)
        if report.family == "xid" and policy is not None:
            if _cancelled(report, xids, policies) or (policy.cancels >= 0 and _cancels(report, xids, policy)):
                continue
            if policy.teardown and _teardown(report, xids):
                continue
        kept.append(report)
    return kept


def _cancelled(report: FaultReport, xids: Sequence[FaultReport], policies: Policies) -> bool:
    return any(
        policies.xid[x.code].cancels == report.code
        for x in xids
        if x.code in policies.xid and x.device == report.device and x.last_ns >= report.last_ns
    )


def _cancels(report: FaultReport, xids: Sequence[FaultReport], policy: XidPolicy) -> bool:
    return any(x.code == policy.cancels and x.device == report.device for x in xids)


def _teardown(report: FaultReport, xids: Sequence[FaultReport]) -> bool:
    same = [x for x in xids if x.code == report.code and x.device != report.device]
    other = [x for x in xids if x.code != report.code and x.device == report.device]
    return bool(same or other)


# -- findings ---------------------------------------------------------------------------------------------


def finding_of(
    report: FaultReport, uuids: dict[str, str], node: str, job: str, policies: Policies
) -> Finding:
    """What a report means. `uuids` names GPUs by PCI address."""
    if report.family in ("xid", "sxid"):
        return _code_finding(report, uuids, node, job, policies)
    rule = next(r for r in policies.rules if r.name == report.family)
    return _rule_finding(report, rule, node, job)


def _code_finding(
    report: FaultReport, uuids: dict[str, str], node: str, job: str, policies: Policies
) -> Finding:
    switch = report.family == "sxid"
    table = policies.sxid if switch else policies.xid
    unknown = XidPolicy(code=report.code, name="not in the table", severity="warning", source="none")
    policy = table.get(report.code, unknown)
    uuid = uuids.get(report.device, "")
    name = f"PCI:{report.device}"
    gpu = uuid or f"{'NVSwitch' if switch else 'GPU'} {name}"
    label = f"{'SXid' if switch else 'Xid'} {report.code} ({policy.name})"
    more = f", {report.count} times" if report.count > 1 else ""
    where = f" on {node}" if node else ""
    return Finding(
        ts_ns=report.last_ns,
        job=job,
        attempt=-1,
        kind="gpu_fault",
        subject_type="gpu",
        subject=_subject(node, uuid or name),
        severity=report.severity or policy.severity,
        confidence=_confidence(report, policy),
        summary=f"{gpu}{f' at {name}' if uuid else ''}{where}: {label}{more}",
        evidence={
            "xid" if not switch else "sxid": report.code,
            "name": policy.name,
            "pci": report.device,
            "uuid": uuid,
            "node": node,
            "layer": policy.layer,
            "nvidia_action": policy.nvidia_action,
            "gpud_action": policy.gpud_action,
            "disputed": policy.disputed,
            "suggested_action": policies.text(policy.action, gpu=gpu, node=node or "the node"),
            "processes": sorted(report.processes),
            "policy_source": policy.source,
            **_recovery(report),
            **_when(report),
        },
    )


def _recovery(report: FaultReport) -> dict[str, object]:
    """What the driver now recommends, from Xid 154. Empty for other codes."""
    m = _RECOVERY.search(report.rest) if report.code == RECOVERY_ACTION else None
    return {"recovery_action": m["after"], "recovery_action_before": m["before"]} if m else {}


def _confidence(report: FaultReport, policy: XidPolicy) -> float:
    sure = _CONFIDENCE[report.severity or policy.severity]
    return round(sure * (0.6 if policy.layer == "application" else 1.0), 2)


def _rule_finding(report: FaultReport, rule: KernelRule, node: str, job: str) -> Finding:
    subject_type: SubjectType = "link" if rule.kind == "link_flap" else "node"
    subject = _subject(node, report.device) if subject_type == "link" else (node or "node")
    more = f" ({report.count} times)" if report.count > 1 else ""
    where = f"{node}: " if node else ""
    device = f" [{report.device}]" if report.device else ""
    return Finding(
        ts_ns=report.last_ns,
        job=job,
        attempt=-1,
        kind=rule.kind,
        subject_type=subject_type,
        subject=subject,
        severity=rule.severity,
        confidence=_CONFIDENCE[rule.severity],
        summary=f"{where}{rule.summary}{device}{more}",
        evidence={
            "rule": rule.name,
            "device": report.device,
            "node": node,
            "suggested_action": rule.action,
            "policy_source": rule.source,
            **_when(report),
        },
    )


def _when(report: FaultReport) -> dict[str, object]:
    """Times are UTC, or since boot where the log does not say when that was."""
    clock = "utc" if report.wall else "since_boot"
    return {
        "count": report.count,
        "first_ns": report.first_ns,
        "last_ns": report.last_ns,
        "clock": clock,
        "lines": list(report.lines),
    }


def _subject(node: str, name: str) -> str:
    return f"{node}/{name}" if node else name
