"""One line of the kernel's log, in any form in which it reaches us.

Raw records of /dev/kmsg (`priority,sequence,microseconds,flags;text`, continuation lines begin with a space),
and what dmesg, journald and syslog make of them. Format: kernel Documentation/ABI/testing/dev-kmsg.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

READABLE = "kernel_log_readable"
"""metric of a node whose agent reads the kernel's log, also while the log is quiet"""
USER_SPACE = "user space: "
"""how the message of a line begins that a process wrote into the kernel's log. The kernel marks these"""
SEVERITIES = ("critical", "critical", "critical", "error", "warning", "info", "info", "debug")

_RAW = re.compile(r"(\d+),(\d+),(\d+),[^;]*;(.*)", re.DOTALL)
_LEVEL = re.compile(r"<(\d+)>|(\w+)\s*:(emerg|alert|crit|err|warn|notice|info|debug)\s*: ")
_NAMED = ("emerg", "alert", "crit", "err", "warn", "notice", "info", "debug")
_CTIME = re.compile(r"\[(\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4})\] ?(.*)", re.DOTALL)
_UPTIME = re.compile(r"\[\s*(\d+\.\d+)\](?:\[[^\]]*\])? ?(.*)", re.DOTALL)
_ISO = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?) ?(.*)", re.DOTALL)
_SYSLOG = re.compile(r"(?:\w{3} [ \d]\d \d\d:\d\d:\d\d )?\S+ kernel: ?(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\x([0-9a-fA-F]{2})")


@dataclass(frozen=True, kw_only=True)
class KernelLine:
    """What the kernel said. `ts_ns` is UTC where the line or the boot time tell, else the time since boot;
    `wall` says which. `seq` is -1 where the form has none."""

    message: str
    ts_ns: int = 0
    wall: bool = False
    severity: str = "info"
    seq: int = -1


def parse(line: str, *, boot_ns: int = 0) -> KernelLine:
    """One line in any of the forms; a line of none of them is all message. `boot_ns`: UTC time of the boot.

    A message whose facility is not the kernel's begins with `USER_SPACE`.

    >>> parse("6,3,1500000,-;eth0: link becomes ready", boot_ns=10**18).ts_ns
    1000000001500000000
    >>> parse("[Sun Feb 23 16:24:18 2025] NVRM: hello").message
    'NVRM: hello'
    """
    raw = _RAW.fullmatch(line)
    if raw:
        since_boot = int(raw[3]) * 1000
        return KernelLine(
            message=_from(int(raw[1]) >> 3 == 0) + _ESCAPE.sub(lambda m: chr(int(m[1], 16)), raw[4]),
            ts_ns=boot_ns + since_boot,
            wall=boot_ns > 0,
            severity=SEVERITIES[int(raw[1]) & 7],
            seq=int(raw[2]),
        )
    severity, sender, text = _leading_level(line)
    stamped = _stamped(text, boot_ns)
    if stamped is None:
        text = m[1] if (m := _SYSLOG.fullmatch(text)) else text
        stamped = _stamped(text, boot_ns) or KernelLine(message=text)
    elif m := _SYSLOG.fullmatch(stamped.message):
        stamped = replace(stamped, message=m[1])
    return replace(stamped, message=sender + stamped.message, severity=severity)


def _from(kernel: bool) -> str:
    return "" if kernel else USER_SPACE


def _leading_level(line: str) -> tuple[str, str, str]:
    """The severity, the sender as the message names it, and the rest of a line."""
    level = _LEVEL.match(line)
    if not level:
        return "info", "", line
    text = line[level.end() :]
    if level[1]:
        return SEVERITIES[int(level[1]) & 7], _from(int(level[1]) >> 3 == 0), text
    return SEVERITIES[_NAMED.index(level[3])], _from(level[2] == "kern"), text


def _stamped(text: str, boot_ns: int) -> KernelLine | None:
    if m := _CTIME.fullmatch(text):
        try:
            at = datetime.strptime(m[1], "%a %b %d %H:%M:%S %Y").replace(tzinfo=UTC)
        except ValueError:
            return None
        return KernelLine(message=m[2], ts_ns=int(at.timestamp()) * 10**9, wall=True)
    if m := _UPTIME.fullmatch(text):
        since_boot = round(float(m[1]) * 1e9)
        return KernelLine(message=m[2], ts_ns=boot_ns + since_boot, wall=boot_ns > 0)
    if m := _ISO.fullmatch(text):
        at = datetime.fromisoformat(m[1].replace(",", "."))
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        return KernelLine(message=m[2], ts_ns=round(at.timestamp() * 1e6) * 1000, wall=True)
    return None


def parse_all(lines: Iterable[str], *, boot_ns: int = 0) -> Iterator[KernelLine]:
    """Every line of a log. Empty lines and continuations of raw records (` SUBSYSTEM=pci`) are skipped."""
    raw = False
    for line in lines:
        text = line.rstrip("\r\n")
        if not text or (raw and text.startswith(" ")):
            continue
        parsed = parse(text, boot_ns=boot_ns)
        raw = parsed.seq >= 0
        yield parsed
