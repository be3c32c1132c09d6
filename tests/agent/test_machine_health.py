"""Signs of a machine: from samples, lines of the kernel's log, and events of a C library of our own."""

import time

import pytest

from pulsetrain.agent.machine_health import MachineHealth, identity
from pulsetrain.analytics.machines.signs import JobLook, Machine, judge, load_tables
from pulsetrain.collectors.machine.gpu import GpuSampler
from pulsetrain.collectors.machine.samples import metrics
from pulsetrain.records.columns import Columns
from tests.nvml.library import TestDriver

S = 1_000_000_000


def lines(*messages):
    row = {
        "node": "n",
        "job": "",
        "attempt": -1,
        "rank": -1,
        "source": "kmsg",
        "severity": "error",
        "rule": "",
    }
    return Columns.from_rows("logs", [{**row, "ts": i * S, "message": m} for i, m in enumerate(messages)])


def test_lines_and_samples_become_signs():
    health = MachineHealth()
    health.observe(lines("a line", "NVRM: Xid (PCI:0000:9b:00): 79, pid=7, GPU has fallen off the bus."))
    health.observe(metrics("n", [("GPU-1", "gpu_lost", 1.0)], S))
    signs = {(s.kind, s.device, s.code) for s in health.signs(S)}
    assert signs == {("xid", "0000:9b:00", 79), ("gpu_lost", "GPU-1", 0)}
    assert health.loops == ()


def test_a_port_that_the_job_does_not_use_is_told_and_asks_for_nothing():
    health = MachineHealth(unused=["san0"])
    for at, downs in enumerate((0.0, 1.0, 1.0, 2.0)):
        ports = [(port, "nic_link_downed_total", downs) for port in ("eth0", "san0")]
        health.observe(metrics("n", ports, (1 + 9 * at) * S))
    health.observe(lines("mlx5_core 0000:5c:00.0 san0: Link down", "mlx5_core 0000:5d:00.0 eth0: Link down"))
    found = judge(
        Machine(node="n", signs=health.signs(30 * S)),
        load_tables(),
        JobLook(job="j", attempt=0, now_ns=30 * S),
    )
    asked = {(f.subject, f.evidence["response"]) for f in found}
    assert asked == {("n/eth0", "evict_at_step"), ("n/san0", "inform")}


def test_a_message_of_three_lines_is_one_sign():
    health = MachineHealth()
    health.observe(lines("NVRM: The NVIDIA GPU 0000:9b:00.0"))
    health.observe(lines("NVRM: (PCI ID: 10de:2330) installed in this system has"))
    health.observe(lines("NVRM: fallen off the bus and is not responding to commands."))
    assert [(s.kind, s.device, s.code) for s in health.signs(S)] == [("xid", "0000:9b:00", 79)]


def test_an_identity_lacks_what_the_driver_does_not_know():
    assert identity({"uuid": "GPU-1"}).numa == -1


def test_an_xid_of_the_driver_is_a_sign_of_the_gpu_s_address(tmp_path, monkeypatch):
    pytest.importorskip("pynvml")
    driver = TestDriver(tmp_path / "state", gpus=2)
    driver.bind(monkeypatch)
    sampler = GpuSampler()
    health = MachineHealth(sampler.identities(), sampler.events())
    assert [gpu.serial for gpu in health.identities] == ["165023000", "165023001"]
    driver.raise_event(1, 0)  # an Xid of 0 is none
    driver.raise_event(1, 119)
    assert health.wait() == 0.0
    assert health.wait() == 0.0
    (sign,) = health.signs(S)
    assert (sign.kind, sign.device, sign.code) == ("xid", "0000:19:00", 119)
    assert [loop.name for loop in health.loops] == ["gpu_events"]


SXID = (
    "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore fifo overflow",
    "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 28006, Severity 0 Engine instance 46 Sub-engine instance 00",
    "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 28006, Data {0x00140004, 0x00100000, 0x00140004, 0x0}",
)


@pytest.mark.parametrize("word", ["Non-fatal", "Fatal"])
def test_an_sxid_of_three_lines_is_one_and_keeps_how_bad_it_is(word):
    health = MachineHealth()
    health.observe(lines(*(line.replace("Non-fatal", word) for line in SXID)))
    health.observe(lines(SXID[1]))
    (sign,) = health.signs(S)
    assert (sign.kind, sign.code, sign.count) == ("sxid", 28006, 1)
    assert f"28006, {word}, Link 46" in sign.text


def test_lines_are_of_now_whatever_the_kernel_stamps_them():
    """Its clock stands still while the machine sleeps."""
    health = MachineHealth()
    health.observe(lines("NVRM: Xid (PCI:0000:9b:00): 79, pid=7, GPU has fallen off the bus."))
    (sign,) = health.signs(time.time_ns())
    assert abs(time.time_ns() - sign.last_ns) < 60 * S


GPUS = [{"index": i, "uuid": f"GPU-{i}", "pci": f"0000:0{i}:00.0", "model": "H100"} for i in range(4)]
XID = "NVRM: Xid (PCI:0000:03:00): 79, pid=7, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("environ", "seen"),
    [
        ({}, {"xid", "gpu_lost"}),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, {"xid", "gpu_lost"}),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, set()),
        ({"CUDA_VISIBLE_DEVICES": "GPU-0"}, set()),
        ({"CUDA_VISIBLE_DEVICES": "MIG-7"}, {"xid", "gpu_lost"}),
    ],
)
def test_what_happens_to_gpus_of_other_jobs_is_not_told(environ, seen):
    health = MachineHealth(GPUS, environ=environ)
    health.observe(lines(XID))
    health.observe(metrics("n", [("GPU-3", "gpu_lost", 1.0)], S))
    assert {sign.kind for sign in health.signs(S)} == seen


@pytest.mark.parametrize(
    ("environ", "usable"),
    [
        ({}, 4),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "0,9"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "MIG-7"}, 0),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
    ],
)
def test_gpus_that_ranks_may_use_are_known_where_that_can_be_told(environ, usable):
    assert list(MachineHealth(GPUS, environ=environ).usable) == [gpu["uuid"] for gpu in GPUS[:usable]]


def test_where_cuda_counts_gpus_in_an_order_of_its_own_all_are_told():
    mixed = [*GPUS[:3], {**GPUS[3], "model": "A100"}]
    for order, seen in (("FASTEST_FIRST", {"xid"}), ("PCI_BUS_ID", set())):
        environ = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": order}
        health = MachineHealth(mixed, environ=environ)
        health.observe(lines(XID))
        assert {sign.kind for sign in health.signs(S)} == seen


OF_A_FIFTH = "NVRM: Xid (PCI:0000:9b:00): 79, pid=7, GPU has fallen off the bus."
NAMES_NO_GPU = "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x6F)"


@pytest.mark.parametrize("environ", [{}, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}])
def test_an_xid_of_a_gpu_that_the_driver_does_not_show_us_is_of_another_job(environ):
    health = MachineHealth(GPUS, environ=environ, complete=True)
    health.observe(lines(OF_A_FIFTH))
    assert health.signs(S) == ()
    health.observe(lines(XID))
    assert [(s.kind, s.device) for s in health.signs(S)] == [("xid", "0000:03:00")]


def test_where_not_all_our_gpus_answered_any_xid_is_told():
    health = MachineHealth(GPUS[:3])
    health.observe(lines(XID))
    assert [s.device for s in health.signs(S)] == ["0000:03:00"]


@pytest.mark.parametrize(
    ("more_on_bus", "environ", "response"),
    [
        ([], {}, "evict_now"),
        (["0000:9b:00.0"], {}, "cordon"),
        ([], {"CUDA_VISIBLE_DEVICES": "0,1"}, "cordon"),
    ],
)
def test_a_line_that_names_no_gpu_evicts_nobody_where_others_use_the_machine(more_on_bus, environ, response):
    on_bus = [gpu["pci"] for gpu in GPUS] + more_on_bus
    health = MachineHealth(GPUS, environ=environ, complete=True, on_bus=on_bus)
    health.observe(lines(NAMES_NO_GPU))
    look = JobLook(job="j", attempt=0, now_ns=S)
    (finding,) = judge(Machine(node="n", signs=health.signs(S), gpus=health.identities), load_tables(), look)
    assert finding.evidence["response"] == response


@pytest.mark.parametrize(
    ("visible", "told"),
    [
        ("4,5,6,7", False),
        ("GPU-04,GPU-05", False),
        ("0,1,2,3", True),
        ("GPU-01,GPU-02", True),
        (None, True),
    ],
)
def test_a_gpu_that_was_lost_before_is_told_where_the_job_uses_it(tmp_path, monkeypatch, visible, told):
    pytest.importorskip("pynvml")
    driver = TestDriver(tmp_path / "state", gpus=8)
    driver.bind(monkeypatch)
    driver.lose(1)
    sampler = GpuSampler()
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    health = MachineHealth(sampler.identities(), environ=environ, lost=sampler.lost)
    health.observe(sampler.sample(S))
    assert [s.device for s in health.signs(S) if s.kind == "gpu_lost"] == ["GPU 1"] * told


def test_a_lost_gpu_does_not_change_which_others_the_job_uses(tmp_path, monkeypatch):
    pytest.importorskip("pynvml")
    driver = TestDriver(tmp_path / "state", gpus=8)
    driver.bind(monkeypatch)
    driver.lose(1)
    health = MachineHealth(GpuSampler().identities(), environ={"CUDA_VISIBLE_DEVICES": "4,5,6,7"})
    assert health.usable == [f"GPU-0{i}" for i in range(4, 8)]


def test_the_kernel_s_log_is_not_told_of_a_card_that_the_job_does_not_use():
    health = MachineHealth(unused=["0000:5c:00.0"])
    text = "mlx5_core {}: poll_health:825:(pid 0): Fatal error 1 detected"
    health.observe(lines(text.format("0000:5c:00.0")))
    assert health.signs(S) == ()
    health.observe(lines(text.format("0000:5d:00.0")))
    assert [s.device for s in health.signs(S)] == ["0000:5d:00.0"]


@pytest.mark.parametrize(
    ("line", "response"),
    [
        ("pcieport 0000:80:01.1: AER: Uncorrected (Fatal) error received: {}", "{}"),
        ("nvidia {}: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer", "{}"),
        (
            "pcieport 0000:80:01.1: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer",
            "cordon",
        ),
    ],
)
def test_a_fatal_error_on_the_bus_stops_the_job_only_where_it_is_of_its_gpu(line, response):
    own, other = GPUS[0]["pci"], "0000:81:00.0"
    for address, expected in ((own, "evict_now"), (other, "cordon")):
        health = MachineHealth(GPUS, complete=True, on_bus=[gpu["pci"] for gpu in GPUS])
        health.observe(lines(line.format(address)))
        machine = Machine(node="n", signs=health.signs(2 * S))
        (found,) = judge(machine, load_tables(), JobLook(job="j", attempt=0, now_ns=2 * S))
        assert found.evidence["response"] == response.format(expected)


def responses(health):
    machine = Machine(node="n", signs=health.signs(2 * S), gpus=health.identities)
    found = judge(machine, load_tables(), JobLook(job="j", attempt=0, now_ns=2 * S))
    return {finding.evidence["response"] for finding in found}


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, {"evict_now"}),
        ("0,1,2,3", {"evict_now"}),
        ("2,3", {"cordon"}),
        ("MIG-7", {"cordon"}),
        ("", set()),
        ("-1", set()),
    ],
)
def test_an_xid_evicts_nobody_where_it_is_not_known_whose_gpu_it_is(visible, expected):
    """Without the driver's binding no GPU has an owner."""
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    health = MachineHealth(environ=environ, on_bus=[gpu["pci"] for gpu in GPUS])
    health.observe(lines(XID))
    assert responses(health) == expected


def test_a_job_without_gpus_hears_nothing_of_them():
    health = MachineHealth(GPUS[:3], environ={"CUDA_VISIBLE_DEVICES": ""})
    health.observe(lines(XID, NAMES_NO_GPU, SXID[0].replace("Non-fatal", "Fatal")))
    health.gpus_silent(S, 100.0)
    assert health.signs(S) == ()


@pytest.mark.parametrize(("visible", "expected"), [("0", {"cordon"}), ("0,1,2,3", {"evict_now"})])
def test_gpus_that_cuda_counts_in_an_order_of_its_own_evict_nobody(visible, expected):
    mixed = [*GPUS[:3], {**GPUS[3], "model": "A100"}]
    health = MachineHealth(mixed, environ={"CUDA_VISIBLE_DEVICES": visible}, complete=True)
    health.observe(lines(XID))
    health.observe(metrics("n", [("GPU-3", "gpu_lost", 1.0)], S))
    assert responses(health) == expected


@pytest.mark.parametrize(("visible", "expected"), [("GPU-0,GPU-1", set()), ("GPU-0,GPU-3", {"evict_now"})])
def test_gpus_of_two_models_that_are_named_by_uuid_have_owners(visible, expected):
    mixed = [*GPUS[:3], {**GPUS[3], "model": "A100"}]
    health = MachineHealth(mixed, environ={"CUDA_VISIBLE_DEVICES": visible}, complete=True)
    health.observe(lines(XID))
    assert responses(health) == expected


class Disks:
    """Says of each disk what its name says."""

    def start(self):
        pass

    def look(self):
        pass

    def use(self, device):
        return device or "maybe"


@pytest.mark.parametrize(
    ("use", "expected"), [("used", "evict_at_step"), ("maybe", "cordon"), ("unused", "inform")]
)
@pytest.mark.parametrize(
    "line",
    [
        "EXT4-fs error (device {}): ext4_find_entry:1463: inode #2: comm bash: reading directory lblock 0",
        "EXT4-fs ({}): Remounting filesystem read-only",
    ],
)
def test_trouble_of_a_disk_evicts_only_where_the_job_uses_it(use, expected, line):
    health = MachineHealth(disks=Disks())
    health.observe(lines(line.format(use)))
    assert responses(health) == {expected}
