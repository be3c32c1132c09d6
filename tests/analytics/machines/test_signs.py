"""Signs of machines: what they mean, and the response that goes with each finding."""

import itertools

import pytest

from pulsetrain.analytics.machines import hardware_policy, policies
from pulsetrain.analytics.machines.hardware import LineReader
from pulsetrain.analytics.machines.signs import JobLook, Machine, Tables, judge, meanings
from pulsetrain.collectors.machine.rdma import RdmaSampler
from pulsetrain.collectors.machine.signs import SignTracker
from pulsetrain.protocol.messages import GpuIdentity, HardwareSign
from pulsetrain.records.kernel_log import parse_all
from tests.repository import DATA

S = 1_000_000_000
RECORDED = DATA / "kmsg"
TABLES = Tables(policies=policies.load(), responses=hardware_policy.load())
LOOK = JobLook(job="j", attempt=2, now_ns=100 * S)
GPUS = (GpuIdentity(uuid="GPU-1", pci="00000000:18:00.0"), GpuIdentity(uuid="GPU-2", pci="00000000:19:00.0"))


def findings(*signs, gpus=GPUS):
    return judge(Machine(node="n", signs=signs, gpus=gpus), TABLES, LOOK)


def xid(code, device="0000:18:00", **changes):
    fields = {"kind": "xid", "device": device, "code": code, "first_ns": S, "last_ns": S, "times_ns": (S,)}
    return HardwareSign(**(fields | changes))


def state(kind, device="GPU-1", held_s=10.0, **changes):
    fields = {"kind": kind, "device": device, "first_ns": S, "last_ns": int((1 + held_s) * S), "value": 1.0}
    return HardwareSign(**(fields | changes))


def test_an_xid_names_the_gpu_by_its_uuid_and_what_is_done():
    (finding,) = findings(xid(79))
    assert (finding.kind, finding.subject_type, finding.subject) == ("gpu_fault", "gpu", "n/GPU-1")
    assert (finding.attempt, finding.job, finding.severity) == (2, "j", "critical")
    assert finding.evidence["response"] == "evict_now"
    assert finding.evidence["policy"] == "xid_machine_restart"
    assert "NVIDIA Xid catalog" in finding.evidence["response_source"]
    assert (finding.evidence["node"], finding.evidence["onset_ns"]) == ("n", S)


def test_a_machine_without_a_sign_has_no_finding():
    assert findings() == []


def test_of_the_troubles_of_a_gpu_the_one_that_asks_for_most_is_told_first():
    signs = (xid(63), xid(94), state("ecc_uncorrected", count=1), xid(79))
    for order in itertools.permutations(signs):
        (finding,) = findings(*order)
        assert (finding.evidence["response"], finding.evidence["xid"]) == ("evict_now", 79)
        assert len(finding.evidence["also"]) == 3


def test_troubles_of_two_gpus_are_two_findings():
    found = findings(xid(79), xid(79, device="0000:19:00"))
    assert sorted(f.subject for f in found) == ["n/GPU-1", "n/GPU-2"]


def test_clean_up_after_a_job_is_no_trouble():
    assert findings(xid(45), xid(45, device="0000:19:00")) == []


def test_a_momentary_state_is_not_told():
    assert findings(state("throttle_hardware_thermal", held_s=1.0)) == []
    (finding,) = findings(state("throttle_hardware_thermal", held_s=10.0))
    assert (finding.kind, finding.evidence["response"]) == ("throttle", "cordon")


def test_a_line_of_the_kernel_s_log_keeps_what_it_says():
    text = "EXT4-fs (nvme0n1p1): Remounting filesystem read-only"
    (finding,) = findings(HardwareSign(kind="read_only_file_system", text=text, times_ns=(S,)))
    assert (finding.kind, finding.subject, finding.evidence["response"]) == (
        "host_fault",
        "n",
        "evict_at_step",
    )


def test_a_port_is_a_link_of_its_node():
    (finding,) = findings(state("port_down", device="mlx5_0/1", count=2, times_ns=(S, 2 * S)))
    assert (finding.subject_type, finding.subject) == ("link", "n/mlx5_0/1")
    assert (finding.kind, finding.severity) == ("link_flap", "critical")


def test_every_sign_has_words_that_can_be_filled_in():
    for name in meanings():
        enough = {"value": 1e4, "count": 9, "times_ns": tuple(range(9)), "held_s": 999.0}
        for device in ("GPU-1", ""):
            (finding,) = findings(state(name, device=device, **enough))
            assert finding.summary.startswith("n")
            assert "{" not in finding.summary + finding.evidence["suggested_action"]


@pytest.mark.parametrize(
    ("file", "responses"),
    [
        ("dmesg-with-xid-119.log", {119: "evict_now"}),
        ("kmsg.1.log", {}),
        ("kmsg.2.peermem.log", {"peermem_invalid_context": "inform"}),
    ],
)
def test_recorded_logs_lead_to_the_response_of_the_table(file, responses):
    path = RECORDED / file
    if not path.exists():
        pytest.skip("the recording is not here")
    tracker, reader = SignTracker(), LineReader(policies.load())
    for line in parse_all(path.read_text(errors="replace").splitlines()):
        report = reader.read(line)
        if report is not None:
            tracker.happened(report.family, report.device, 50 * S, code=report.code, text=line.message)
    found = [finding.evidence for finding in findings(*tracker.read(50 * S), gpus=())]
    assert {e.get("xid") or e["rule"]: e["response"] for e in found} == responses


def test_the_ports_of_a_recorded_machine_show_no_sign():
    tree = RECORDED.parent / "rdma-h100" / "class-infiniband"
    if not tree.is_dir():
        pytest.skip("the recording is not here")
    tracker, sampler = SignTracker(), RdmaSampler(tree)
    for second in range(3):
        samples = sampler.sample((50 + second) * S)
        assert samples.num_rows > 100
        tracker.observe(samples)
    assert tracker.read(53 * S) == ()
