from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.records.kernel_log import KernelLine, parse, parse_all

BOOT = 1_740_000_000 * 10**9
UTC = 1_740_327_858 * 10**9  # Sun Feb 23 16:24:18 2025


@pytest.mark.parametrize(
    ("line", "ts_ns", "wall"),
    [
        ("3,812,1500000,-;NVRM: Xid 79", BOOT + 1_500_000_000, True),
        ("[    1.500000] NVRM: Xid 79", BOOT + 1_500_000_000, True),
        ("[    1.500000][  T214] NVRM: Xid 79", BOOT + 1_500_000_000, True),
        ("[Sun Feb 23 16:24:18 2025] NVRM: Xid 79", UTC, True),
        ("2025-02-23T16:24:18,000000+00:00 NVRM: Xid 79", UTC, True),
        ("2025-02-23T17:24:18+01:00 host7 kernel: NVRM: Xid 79", UTC, True),
        ("Feb 23 16:24:18 host7 kernel: NVRM: Xid 79", 0, False),
        ("host7 kernel: [    1.500000] NVRM: Xid 79", BOOT + 1_500_000_000, True),
        ("NVRM: Xid 79", 0, False),
        ("[Sun Feb 99 16:24:18 2025] NVRM: Xid 79", 0, False),
    ],
)
def test_a_line_of_any_form_gives_its_message_and_its_time(line, ts_ns, wall):
    parsed = parse(line, boot_ns=BOOT)
    assert parsed.message.endswith("NVRM: Xid 79")
    assert (parsed.ts_ns, parsed.wall) == (ts_ns, wall)


def test_without_the_time_of_the_boot_a_stamp_is_the_time_since_then():
    assert (parse("[    1.5] x").ts_ns, parse("[    1.5] x").wall) == (1_500_000_000, False)


@pytest.mark.parametrize(
    ("line", "severity"),
    [
        ("2,1,1,-;x", "critical"),
        ("<4>[ 1.0] x", "warning"),
        ("kern  :err   : [ 1.0] x", "error"),
        ("kern  :debug : x", "debug"),
        ("x", "info"),
    ],
)
def test_the_severity_is_the_kernels(line, severity):
    assert (parse(line).severity, parse(line).message) == (severity, "x")


def test_escaped_bytes_of_a_raw_record_are_what_they_stand_for():
    assert parse("6,1,1,-;tab\\x09end") == KernelLine(message="tab\tend", ts_ns=1000, severity="info", seq=1)


def test_continuations_of_raw_records_and_empty_lines_are_skipped():
    lines = ["6,1,1,-;first\n", " SUBSYSTEM=pci\n", " DEVICE=+pci:0\n", "\n", "6,2,2,-;second\r\n"]
    assert [line.message for line in parse_all(lines)] == ["first", "second"]
    assert [line.message for line in parse_all(["plain", " indented"])] == ["plain", " indented"]


@given(st.text(st.characters(exclude_characters="\r\n")))
def test_no_line_is_refused(text):
    assert isinstance(parse(text).message, str)


def test_message_time_severity_and_number_are_read_together():
    text = "NVRM: hello; world"
    forms = {
        f"6,3,1500000,-;{text}": (1_500_000_000, False, "info", 3),
        f"3,4,1500000,c,caller=T1;{text}": (1_500_000_000, False, "error", 4),
        f"[Sun Feb 23 16:24:18 2025] {text}": (1_740_327_858 * 10**9, True, "info", -1),
        f"[    1.500000] {text}": (1_500_000_000, False, "info", -1),
        f"[    1.500000][ T1234] {text}": (1_500_000_000, False, "info", -1),
        f"<4>[    1.500000] {text}": (1_500_000_000, False, "warning", -1),
        f"kern  :err   : [    1.500000] {text}": (1_500_000_000, False, "error", -1),
        f"2025-02-23T16:24:18,500000+00:00 {text}": (1_740_327_858_500_000_000, True, "info", -1),
        f"Feb 23 16:24:18 host-1 kernel: [    1.500000] {text}": (1_500_000_000, False, "info", -1),
        text: (0, False, "info", -1),
    }
    for line, (ts_ns, wall, severity, seq) in forms.items():
        parsed = parse(line)
        assert (parsed.message, parsed.ts_ns, parsed.wall, parsed.severity, parsed.seq) == (
            text,
            ts_ns,
            wall,
            severity,
            seq,
        ), line
    assert parse(f"6,3,1500000,-;{text}", boot_ns=10**18).ts_ns == 10**18 + 1_500_000_000
    assert parse(r"6,3,1,-;a\x0ab").message == "a\nb"


@pytest.mark.parametrize("line", ["11,1,1,-;x", "<27>[ 1.0] x", "daemon:err   : [ 1.0] x"])
def test_a_line_that_a_process_wrote_says_so(line):
    """The facility is above the three bits of the severity, and only the kernel's is 0."""
    assert (parse(line).severity, parse(line).message) == ("error", "user space: x")
