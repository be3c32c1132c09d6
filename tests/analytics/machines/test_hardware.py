"""Kernel logs: recorded ones, every form of a line, and what is noise."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.analytics.machines.hardware import address, read, read_file
from pulsetrain.analytics.machines.policies import load
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, findings
from pulsetrain.core.errors import UsageError
from pulsetrain.records.kernel_log import KernelLine, parse
from tests.analytics.machines.kernel_lines import log, reported, xid
from tests.repository import DATA

RECORDED = DATA / "kmsg"
recorded = pytest.mark.skipif(not RECORDED.is_dir(), reason=f"no recordings in {RECORDED}")


@recorded
def test_the_recorded_gpu_fault_is_named_once_with_its_gpu():
    (path,) = RECORDED.glob("dmesg*.log")
    (verdict,) = read_file(path, node="n1")
    assert isinstance(verdict, Finding)
    assert (verdict.kind, verdict.subject_type, verdict.severity) == ("gpu_fault", "gpu", "critical")
    assert verdict.evidence["xid"] == 119
    assert verdict.evidence["pci"] == "0000:9b:00"
    assert verdict.subject == "n1/GPU-509665ad-b600-ac93-3616-d754b23d636d"
    assert verdict.evidence["count"] == 5
    assert verdict.evidence["last_ns"] - verdict.evidence["first_ns"] == 355 * 10**9


@recorded
def test_a_log_of_a_sound_machine_has_no_finding():
    (verdict,) = read_file(RECORDED / "kmsg.1.log")
    assert isinstance(verdict, Healthy)


@recorded
def test_peermem_errors_are_one_finding():
    (verdict,) = read_file(RECORDED / "kmsg.2.peermem.log", node="n1")
    assert isinstance(verdict, Finding)
    assert (verdict.evidence["rule"], verdict.evidence["count"]) == ("peermem_invalid_context", 7)
    assert (verdict.subject_type, verdict.subject, verdict.evidence["clock"]) == ("node", "n1", "since_boot")


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "NVRM: Xid (0000:05:00): 79, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:05:00 GPU-I:05): 79, GPU has fallen off the bus.",
        "NVRM: GPU 0000:05:00.0: GPU has fallen off the bus.",
        "NVRM: GPU 05:00.0: GPU has fallen off the bus.",
    ],
)
def test_a_gpu_that_fell_off_the_bus_is_79_in_every_form(line):
    assert reported(read(log(line))) == {(79, "PCI:0000:05:00", "critical")}


def test_a_gpu_that_fell_off_the_bus_in_three_lines_is_79_too():
    lines = [
        "NVRM: The NVIDIA GPU 0000:18:00.0",
        "NVRM: (PCI ID: 10de:2901) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    ]
    assert reported(read(log(*lines))) == {(79, "PCI:0000:18:00", "critical")}
    assert reported(read(log(*lines, xid(79, "0000:18:00")))) == {(79, "PCI:0000:18:00", "critical")}
    assert reported(read(log("NVRM: The NVIDIA GPU invalid-bdf.0", lines[2]))) == set()


def test_clean_up_after_a_job_is_no_fault():
    everywhere = [xid(45, f"0000:{i:02x}:00") for i in range(8)]
    (verdict,) = read(log(*everywhere))
    assert isinstance(verdict, Healthy)
    assert verdict.numbers["dropped"] == 8
    assert reported(read(log(xid(48), xid(45)))) == {(48, "PCI:0000:9b:00", "critical")}
    assert reported(read(log(xid(45)))) == {(45, "PCI:0000:9b:00", "info")}


def test_a_code_that_is_taken_back_is_gone_unless_it_comes_again():
    assert reported(read(log(xid(163), xid(162)))) == set()
    assert reported(read(log(xid(163), xid(162), xid(163)))) == {(163, "PCI:0000:9b:00", "warning")}
    assert (163, "PCI:0000:9c:00", "warning") in reported(read(log(xid(163, "0000:9c:00"), xid(162))))


def test_zero_is_no_code_and_an_unknown_one_is_a_warning():
    assert reported(read(log(xid(0)))) == set()
    assert reported(read(log(xid(9999)))) == {(9999, "PCI:0000:9b:00", "warning")}


def test_the_driver_says_what_it_recommends_and_how_bad_a_link_is():
    change = "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)"
    (verdict,) = findings(read(log(xid(154, rest=change))))
    assert verdict.evidence["recovery_action"] == "Drain and Reset"
    fatal = "NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000)"
    milder = fatal.replace("Fatal", "Nonfatal")
    assert [f.severity for f in findings(read(log(xid(149, rest=fatal))))] == ["critical"]
    assert [f.severity for f in findings(read(log(xid(149, rest=milder))))] == ["info"]


def test_a_switch_says_itself_how_bad_it_is():
    line = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, {}, Link 30 LTSSM Fault Up"
    (bad,) = findings(read(log(line.format("Fatal")), node="n"))
    assert (bad.subject, bad.severity, bad.evidence["sxid"]) == ("n/PCI:0000:c1:00", "critical", 20034)
    (mild,) = findings(read(log(line.format("Non-fatal"))))
    assert mild.severity == "info"


def test_a_code_of_a_switch_decides_where_its_line_does_not_say():
    line = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): {}, Link 30 something"
    severities = {
        code: findings(read(log(line.format(code))))[0].severity
        for code in (11012, 20001, 12028, 19084, 24007, 12020, 23008, 22003)
    }
    assert severities == {
        **{11012: "info", 20001: "info", 12028: "warning", 19084: "warning", 24007: "critical"},
        **dict.fromkeys((12020, 23008, 22003), "critical"),
    }


def test_both_opinions_on_a_code_stay_visible():
    (verdict,) = findings(read(log(xid(63))))
    assert (verdict.evidence["nvidia_action"], verdict.evidence["gpud_action"]) == ("IGNORE", "REBOOT_SYSTEM")
    assert verdict.evidence["disputed"]
    assert verdict.severity == "warning"


@pytest.mark.parametrize("rule", load().rules, ids=lambda r: r.name)
def test_every_rule_matches_its_sample_and_only_it_does(rule):
    (verdict,) = findings(read(log(rule.sample), node="n"))
    assert (verdict.evidence["rule"], verdict.severity) == (rule.name, rule.severity)


@given(
    codes=st.lists(st.sampled_from([13, 48, 63, 79, 95, 119, 45, 162, 163]), max_size=8), seed=st.randoms()
)
def test_the_order_in_which_lines_arrive_changes_nothing(codes, seed):
    lines = log("a quiet line", *(xid(c, f"0000:0{i % 3}:00") for i, c in enumerate(codes)))
    mixed = list(lines)
    seed.shuffle(mixed)
    assert read(mixed) == read(lines)


def test_more_of_the_same_is_never_milder_and_renaming_renames():
    once, often = findings(read(log(xid(48)))), findings(read(log(*[xid(48)] * 9)))
    assert often[0].severity == once[0].severity
    assert often[0].confidence >= once[0].confidence
    assert findings(read(log(xid(48)), node="b"))[0].subject == "b/PCI:0000:9b:00"


def test_no_line_is_blind_and_a_missing_file_one_clear_line(tmp_path):
    (verdict,) = read([])
    assert isinstance(verdict, Inconclusive)
    assert verdict.blind
    with pytest.raises(UsageError, match="No such file"):
        read_file(tmp_path / "none")


@given(st.text(max_size=200))
def test_any_text_is_a_line(text):
    assert isinstance(parse(text), KernelLine)
    read([parse(text)])


def test_addresses_are_written_one_way():
    assert address("9B:00") == address("00000000:9b:00") == address("0000:9b:00") == "0000:9b:00"


def test_the_evidence_is_json():
    (verdict,) = findings(read(log(xid(48))))
    assert json.loads(verdict.row()["evidence"])["xid"] == 48


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("NVRM: Xid (0002:00): 13, 0001 00000000 0000902d", (13, "PCI:0000:02:00", "warning")),
        ("NVRM: Xid  (PCI:0000:3b:00):79, pid=123", (79, "PCI:0000:3b:00", "critical")),
        ("NVRM: Xid (PCI:0000:3b:00) : 74, pid=1", (74, "PCI:0000:3b:00", "critical")),
        ("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 43, pid=1", (43, "PCI:0000:01:00", "warning")),
        ("nvidia-nvswitch0:SXid (PCI:0000:c2:00.0):20034, Fatal", (20034, "PCI:0000:c2:00", "critical")),
    ],
)
def test_codes_are_read_however_the_driver_spaces_them(line, expected):
    (found,) = findings(read(log(line)))
    code = found.evidence.get("xid", found.evidence.get("sxid"))
    assert (code, found.subject, found.severity) == expected


@pytest.mark.parametrize(
    "line",
    [
        "usb 1-1: new high-speed USB device number 2 using xhci_hcd",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.104.05",
        "NVRM: Xid (PCI:0000:3b:00): 0, nothing",
        "perf: interrupt took too long (2505 > 2500), lowering kernel.perf_event_max_sample_rate to 79000",
        "python3[123]: segfault at 0 ip 00007f sp 00007ffe error 4 in libc.so.6[7f+1]",
        "EDAC MC: Ver: 3.0.0",
        "nvme nvme0: 32/0/0 default/read/poll queues",
        "pcieport 0000:00:1c.0: AER: enabled with IRQ 24",
        "mlx5_core 0000:54:00.0: Port module event: module 0, Cable plugged",
        "mlx5_core 0000:54:00.0 ens3f0np0: Link up",
        "EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode",
        "XFS (sda1): Ending clean mount",
        "CPU12: Core temperature/speed normal (total events = 123)",
        "Lustre: Mounted scratch-client",
        "rcu: Hierarchical RCU implementation.",
        "blk_update_request: I/O error, dev fd0, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0",
        "Buffer I/O error on dev sr0, logical block 0, async page read",
        "critical target error, dev sdb, sector 2048 op 0x3:(DISCARD) flags 0x800 phys_seg 1 prio class 2",
        "critical target error, dev sdb, sector 2048 op 0x9:(WRITE_ZEROES) flags 0x800 phys_seg 0",
        "blk_update_request: I/O error, dev loop3, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1",
        "nvme nvme0: failed to set APST feature (2)",
        "nvme nvme0: resetting controller",  # what `nvme reset` asks for
    ],
)
def test_what_every_boot_prints_is_no_finding(line):
    assert reported(read(log(line))) == set()


@pytest.mark.parametrize(
    ("line", "device"),
    [
        ("critical space allocation error, dev dm-3, sector 2048 op 0x1:(WRITE) flags 0x800", "dm-3"),
        ("device-mapper: thin: 253:4: no free data space available.", ""),
        ("device-mapper: thin: 253:4: switching pool to out-of-data-space (queue IO) mode", ""),
    ],
)
def test_a_thin_volume_that_is_full_is_no_failing_disk(line, device):
    (found,) = findings(read(log(line)))
    assert (found.evidence["rule"], found.evidence["device"]) == ("block_space", device)


def test_a_disk_error_names_the_whole_device():
    (found,) = findings(read(log("Buffer I/O error on dev dm-1, logical block 0, lost sync page write")))
    assert (found.evidence["rule"], found.evidence["device"]) == ("block_io_error", "dm-1")


def test_corrected_errors_are_milder_than_uncorrected_ones():
    pairs = [
        ("EDAC MC0: 1 CE memory read error", "EDAC MC0: 1 UE memory read error"),
        (
            "pcieport 0:0:1.0: AER: Corrected error received",
            "pcieport 0:0:1.0: AER: Uncorrected (Fatal) error",
        ),
        ("{1}[Hardware Error]: event severity: corrected", "{1}[Hardware Error]: event severity: fatal"),
        (
            "mce: [Hardware Error]: Machine check events logged",
            "mce: [Hardware Error]: CPU 1: Machine Check Exception: 5 Bank 4",
        ),
    ]
    for mild, bad in pairs:
        assert [f.severity for f in findings(read(log(mild)))] == ["info"], mild
        assert [f.severity for f in findings(read(log(bad)))] == ["critical"], bad


def test_an_address_that_the_agent_knows_is_named_by_its_uuid():
    known = {"0000:9b:00": "GPU-7"}
    assert reported(read(log(xid(79)), node="n", uuids=known)) == {(79, "n/GPU-7", "critical")}


@pytest.mark.parametrize(
    ("text", "families"),
    [
        ("NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus.", []),
        ("Kernel panic - not syncing", []),
        ("nv-fabricmanager: detected NVSwitch fatal error 20034 on fid 0", ["fabric_manager_fatal"]),
    ],
)
def test_what_a_process_wrote_into_the_log_is_not_taken_for_the_kernel_s(text, families):
    """journald may copy a script's lines there. The fabric manager is a process too."""
    told = findings(read([parse(f"12,1,1,-;{text}")]))
    assert [finding.evidence.get("rule", "xid") for finding in told] == families
    assert findings(read([parse(f"4,1,1,-;{text}")]))


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("pcieport 0000:00:1c.0: AER: Correctable error message received from 0000:01:00.0",
         "pcie_corrected"),
        ("nvme 0000:01:00.0: PCIe Bus Error: severity=Correctable, type=Physical Layer", "pcie_corrected"),
        ("pcieport 0000:80:01.1: AER: Uncorrectable (Fatal) error message received from 0000:81:00.0",
         "pcie_uncorrected"),
        ("pcieport 0000:80:01.1: DPC: containment event, status:0x1f01 source:0x0000", "pcie_card_gone"),
        ("[Hardware Error]: Corrected error, no action required.", "machine_check_logged"),
        ("[Hardware Error]: Deferred error, no action required.", "machine_check_logged"),
        ("[Hardware Error]: Uncorrected, software restartable error.", "machine_check"),
        ("Out of memory: Kill process 1234 (python) score 990 or sacrifice child", "out_of_memory"),
        ("Memory cgroup out of memory: Kill process 1234 (python) score 1 or sacrifice child",
         "cgroup_out_of_memory"),
        ("INFO: task tmux: server:123 blocked for more than 120 seconds.", "blocked_task"),
        ("INFO: task kworker/u96:2+flush-259:0:77 blocked for more than 120 seconds.", "blocked_task"),
        ("XFS (nvme0n1p1): Log I/O error (0x2) detected at xlog_ioend_work+0x6f/0x90 [xfs]",
         "file_system_error"),
        ("XFS (nvme0n1p1): Metadata CRC error detected at xfs_agi_read_verify+0xd0 [xfs]",
         "file_system_error"),
        ("amdgpu 0000:0c:00.0: amdgpu: 4 uncorrectable hardware errors detected in umc block",
         "amdgpu_uncorrected"),
        ("amdgpu 0000:0a:00.0: GPU reset(2) failed", "amdgpu_reset_failed"),
        ("amdgpu 0000:07:00.0: amdgpu: GPU reset begin!. Source:  4", "amdgpu_reset"),
    ],
)  # fmt: skip
def test_what_other_kernels_and_cards_say_has_a_rule(line, rule):
    (finding,) = findings(read(log(line)))
    assert finding.evidence["rule"] == rule


@pytest.mark.parametrize(
    "line",
    [
        "XFS (sdc): Unmounting Filesystem",
        "XFS (nvme0n1p1): User initiated shutdown received.",
        "amdgpu 0000:0c:00.0: amdgpu: GPU reset(2) succeeded!",
        "amdgpu 0000:0c:00.0: amdgpu: 1 correctable hardware errors detected in total in umc block",
        "INFO: task python:4321 <writer> blocked on an rw-semaphore likely owned by task python:4322",
    ],
)
def test_what_other_kernels_say_of_no_trouble_is_no_finding(line):
    assert not findings(read(log(line)))


@pytest.mark.parametrize(
    ("severity", "rule"), [(2, "nic_health"), (3, "nic_health"), (4, "nic_health_notice")]
)
def test_a_network_cards_own_severity_decides(severity, rule):
    """The firmware also reports heat or a change of power in this way, and the card works on."""
    card = "mlx5_core 0000:54:00.0: print_health_info:435:(pid 0)"
    line = f"{card}: Health issue observed, High temperature, severity({severity}) X:"
    assert {f.evidence["rule"] for f in findings(read(log(line)))} == {rule}


def test_what_follows_a_network_cards_notice_is_no_failure():
    line = "mlx5_core 0000:54:00.0: print_health_info:439:(pid 0): assert_var[0] 0x00000000"
    assert reported(read(log(line))) == {("nic_health_notice", "node", "warning")}
