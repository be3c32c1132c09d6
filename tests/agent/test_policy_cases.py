"""Each trouble through the real binding and a C library of our own: the right response in ten samples."""

import pytest

from pulsetrain.agent.machine_health import MachineHealth
from pulsetrain.analytics.machines import hardware_policy, policies
from pulsetrain.analytics.machines.signs import JobLook, Machine, Tables, judge
from pulsetrain.collectors.machine.gpu import GpuSampler
from tests.nvml.library import TestDriver

pytest.importorskip("pynvml")

S = 1_000_000_000
SOON_S = 10  # of samples, one a second
TABLES = Tables(policies=policies.load(), responses=hardware_policy.load())


class Node:
    """What an agent on a machine with this driver would report, second by second."""

    def __init__(self, driver):
        self.driver, self.now_s = driver, 1000
        self.sampler = GpuSampler(node="n")
        self.health = MachineHealth(self.sampler.identities(), self.sampler.events())

    def second(self, **values):
        self.now_s += 1
        if values:
            self.driver.set(0, **values)
        self.health.observe(self.sampler.sample(self.now_s * S))

    def xid(self, code, times=1):
        for _ in range(times):
            self.driver.raise_event(0, code)
            self.health.wait()

    def findings(self):
        # an event is stamped by the wall clock, samples by this test's: each sign is judged at its own time
        machine = Machine(node="n", signs=self.health.signs(self.now_s * S), gpus=self.health.identities)
        return judge(machine, TABLES, JobLook(job="j", attempt=0, now_ns=self.now_s * S))

    def response(self):
        found = self.findings()
        return found[0].evidence["response"] if found else "nothing"


@pytest.fixture
def node(tmp_path, monkeypatch):
    driver = TestDriver(tmp_path / "state")
    driver.bind(monkeypatch)
    node = Node(driver)
    for _ in range(3):
        node.second()
    assert node.findings() == []
    return node


@pytest.mark.parametrize(
    ("code", "response"),
    [
        (79, "evict_now"), (48, "evict_at_step"), (63, "inform"), (64, "evict_at_step"), (94, "cordon"),
        (95, "evict_now"), (119, "evict_now"), (74, "evict_at_step"), (31, "inform"),
    ],
)  # fmt: skip
def test_an_xid_of_the_driver(node, code, response):
    node.xid(code)
    (finding,) = node.findings()
    assert (finding.subject, finding.evidence["xid"]) == ("n/GPU-00", code)
    assert finding.evidence["response"] == response


@pytest.mark.parametrize(
    ("sick", "response", "kind"),
    [
        ({"ecc_uncorrected": 1}, "cordon", "gpu_fault"),
        ({"ecc_uncorrected": 3}, "evict_at_step", "gpu_fault"),
        ({"rows_pending": 1}, "cordon", "gpu_fault"),
        ({"rows_failed": 1}, "evict_at_step", "gpu_fault"),
        ({"recovery_action": 1}, "evict_at_step", "gpu_fault"),
        ({"recovery_action": 2}, "evict_at_step", "gpu_fault"),
        ({"recovery_action": 3}, "evict_at_step", "gpu_fault"),
        ({"recovery_action": 4}, "evict_at_step", "gpu_fault"),
        ({"event_reasons": 0x40}, "cordon", "throttle"),
        ({"event_reasons": 0x8}, "cordon", "throttle"),
        ({"event_reasons": 0x80}, "cordon", "throttle"),
        ({"event_reasons": 0x20}, "inform", "throttle"),
        ({"pcie_width": 8}, "evict_at_step", "pcie_degraded"),
        ({"lost": 1}, "evict_now", "gpu_fault"),
    ],
)
def test_a_value_of_the_driver_within_ten_seconds(node, sick, response, kind):
    node.second(**sick)
    for _ in range(SOON_S - 1):
        node.second()
    (finding,) = node.findings()
    assert (finding.evidence["response"], finding.kind) == (response, kind)
    assert (finding.subject, finding.evidence["uuid"]) == ("n/GPU-00", "GPU-00")


@pytest.mark.parametrize("action", [0, 5, None])
def test_no_recovery_action_or_one_that_headers_differ_on_is_no_trouble(node, action):
    for _ in range(SOON_S):
        node.second(recovery_action=action)
    assert node.response() == "nothing"


def test_corrected_errors_that_flood(node):
    for second in range(SOON_S):
        node.second(ecc_corrected=5000 * second)
    assert node.response() == "evict_at_step"


def test_a_few_corrected_errors_are_nothing(node):
    for second in range(60):
        node.second(ecc_corrected=second)
    assert node.response() == "nothing"


def test_heat_that_lasts(node):
    node.second(event_reasons=0x40)
    for _ in range(310):
        node.second()
    assert node.response() == "evict_at_step"


def test_idleness_and_the_power_cap_are_no_trouble(node):
    for _ in range(20):
        node.second(event_reasons=0x1 | 0x2 | 0x4, pcie_generation=1, utilization=0)
    assert node.response() == "nothing"


def test_nvlink_errors_that_go_on(node):
    for second in range(8):
        node.second(nvlink_replays=second)
    assert node.response() == "cordon"


@pytest.mark.parametrize("value", ["nvlink_crc_flit", "nvlink5_receive_errors", "nvlink5_integrity"])
def test_the_bad_nvlink_of_a_gpu_is_named(node, value):
    for second in range(8):
        node.second(**{value: 2 * second}, nvlink_bad=11)
    (finding,) = node.findings()
    assert finding.summary == "n/GPU-00 had 14 NVLink errors on link 11"
    assert (finding.subject, finding.evidence["links"]) == ("n/GPU-00", [11])
    assert finding.evidence["response"] == "cordon"


def test_new_recoveries_of_an_nvlink_5_within_five_minutes(node):
    node.second(nvlink5_recoveries=1)
    assert node.response() == "inform"
    for _ in range(10):
        node.second()
    node.second(nvlink5_recoveries=2)
    assert node.response() == "evict_at_step"


def test_of_several_troubles_the_strictest_response_counts(node):
    node.xid(63)
    node.second(ecc_uncorrected=1, rows_pending=1)
    assert node.response() == "cordon"
    node.second(lost=1)
    assert node.response() == "evict_now"


def test_an_nvlink_xid_of_which_the_driver_does_not_say_how_bad_it_was_evicts_nobody(node):
    """Its line in the kernel's log says so. An agent may not be allowed to read that."""
    node.xid(149)
    assert node.response() == "inform"


def test_a_gpu_that_was_lost_before_the_agent_began_is_told_and_the_others_are_watched(tmp_path, monkeypatch):
    driver = TestDriver(tmp_path / "state", gpus=2)
    driver.bind(monkeypatch)
    driver.set(1, lost=1)
    node = Node(driver)
    assert node.sampler.blind == ""
    node.second()
    (finding,) = node.findings()
    assert (finding.evidence["response"], finding.subject) == ("evict_now", "n/GPU 1")
    node.second(ecc_uncorrected=1)
    assert {f.subject for f in node.findings()} == {"n/GPU 1", "n/GPU-00"}
