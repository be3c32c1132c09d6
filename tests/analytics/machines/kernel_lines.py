"""Lines of kernel logs to test with."""

from __future__ import annotations

from pulsetrain.analytics.verdict import findings
from pulsetrain.records.kernel_log import KernelLine


def log(*messages):
    return [KernelLine(message=m, ts_ns=i * 10**9, wall=True) for i, m in enumerate(messages)]


def xid(code, gpu="0000:9b:00", rest="pid=7, name=python, something"):
    return f"NVRM: Xid (PCI:{gpu}): {code}, {rest}"


def reported(verdicts):
    return {
        (f.evidence.get("xid", f.evidence.get("rule")), f.subject, f.severity) for f in findings(verdicts)
    }
