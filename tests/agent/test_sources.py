"""Rows of hardware and checkpoints, and a listener that must not cost rows."""

import sys
import threading
import time

import pytest

from pulsetrain.agent.gpu_opening import GpuOpener
from pulsetrain.agent.processes.rank import NodeIdentity
from pulsetrain.agent.sources import CheckpointSource, HardwareSource, HostSource, TeeSink
from pulsetrain.collectors.config import CollectorConfig
from pulsetrain.collectors.machine.gpu import NOT_INSTALLED
from pulsetrain.collectors.machine.samples import metrics as gpu_metrics
from tests.records.rows import columns


def metrics(device):
    return columns("metrics", 1, device=[device])


class Sampler:
    def __init__(self, device, *, blind="", error=None):
        self.device, self.blind, self.error = device, blind, error

    def sample(self, now_ns):
        if self.error:
            raise self.error
        assert not self.blind
        return metrics(self.device)


class KernelLog:
    def __init__(self, *lines, blind=""):
        self.lines, self.blind = list(lines), blind

    def poll(self):
        return self.lines.pop(0) if self.lines else None


def devices(source):
    return [name for batch in source.take(0) for name in batch.column("device").to_list()]


def test_every_sampler_that_sees_something_is_read_once_in_each_period():
    samplers = (Sampler("gpu0"), Sampler("mlx5_0"), Sampler("", blind="no such folder"))
    source = HardwareSource(samplers, KernelLog(), 3.0)
    assert source.sample() == 3.0
    assert devices(source) == ["gpu0", "mlx5_0"]
    assert devices(source) == []


def test_a_sampler_that_fails_costs_only_its_own_rows():
    source = HardwareSource((Sampler("gpu0", error=OSError("NVML")), Sampler("eth0")), KernelLog(), 1.0)
    with pytest.raises(OSError, match="NVML"):
        source.sample()
    assert devices(source) == ["eth0"]


def test_lines_of_the_kernels_log_are_rows_too():
    source = HardwareSource((), KernelLog(columns("logs", 2, message=["a", "b"])), 1.0)
    source.sample()
    assert [batch.record for batch in source.take(0)] == ["logs"]


def test_a_machine_without_anything_to_read_has_no_thread():
    blind = HardwareSource((Sampler("", blind="none"),), KernelLog(blind="not permitted"), 1.0)
    assert blind.blind
    assert blind.loops == ()
    blind.start()
    blind.stop()
    assert [loop.name for loop in HardwareSource((Sampler("gpu0"),), KernelLog(), 1.0).loops] == ["hardware"]


def test_the_hosts_samples_name_the_node_and_its_ranks():
    import os

    batches = HostSource("n0", lambda: {"rank 3": os.getpid()}).take(10**18)
    rows = [row for batch in batches for row in batch.to_rows()]
    assert {row["node"] for row in rows} == {"n0"}
    assert any(row["device"] == "rank 3" for row in rows)


class Service:
    """A checkpoint service that hands out one row of each record that it is asked for."""

    def take_records(self, now_ns, *records):
        return [columns(record, 1) for record in records]


def test_a_source_of_checkpoints_takes_one_record():
    assert [batch.record for batch in CheckpointSource(Service(), "events").take(0)] == ["events"]


class Spool:
    size_bytes, dropped_rows, dropped = 7, 2, {"full": 2}

    def __init__(self):
        self.batches = []

    def append(self, batch):
        self.batches.append(batch)
        return True


class Listener:
    def __init__(self, error=None):
        self.seen, self.error = [], error

    def observe(self, rows):
        self.seen.append(rows)
        if self.error:
            raise self.error


@pytest.mark.parametrize("error", [None, ValueError("odd rows")])
def test_a_listener_sees_every_batch_and_cannot_stop_one(error):
    spool, listener = Spool(), Listener(error)
    sink = TeeSink(spool, listener)
    batch = metrics("gpu0")
    assert sink.append(batch)
    assert spool.batches == listener.seen == [batch]
    assert (sink.size_bytes, sink.dropped_rows, sink.dropped) == (7, 2, {"full": 2})


def test_the_list_of_gpus_is_sent_once_it_can_be_had():
    answers = [None, columns("events", 1, kind=["gpus"])]
    source = HardwareSource((Sampler("gpu0"),), KernelLog(), 1.0, lambda now_ns: answers.pop(0), gpus=8)
    for _ in range(3):
        source.sample()
    assert [batch.record for batch in source.take(0)] == ["metrics", "metrics", "events", "metrics"]
    assert source.gauges == {"gpus": 8}


@pytest.mark.parametrize(("heartbeat_s", "period_s"), [(0.2, 0.2), (1.0, 1.0), (10.0, 1.0), (60.0, 1.0)])
def test_hardware_is_read_once_a_second_however_rarely_the_agent_reports(heartbeat_s, period_s):
    """A state ends where it is not seen for five seconds, and a driver is silent after twenty."""
    identity = NodeIdentity(node="n0", job="j", address="127.0.0.1", nproc_per_node=1)
    assert HardwareSource.of_node(identity, heartbeat_s, CollectorConfig(), {}).sample() == period_s


class HungDriver:
    """A binding whose driver never answers."""

    def __init__(self):
        self.answers = threading.Event()

    NVMLError = OSError

    def nvmlInit(self):
        self.answers.wait(30)
        raise OSError


def test_a_driver_that_hangs_does_not_keep_the_agent_from_its_job_and_is_a_sign(monkeypatch):
    driver = HungDriver()
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    identity = NodeIdentity(node="n0", job="j", address="127.0.0.1", nproc_per_node=1)
    began_s = time.monotonic()
    source = HardwareSource.of_node(identity, 1.0, CollectorConfig(), {}, gpus_limit_s=0.05)
    assert time.monotonic() - began_s < 5
    assert {sign.kind for sign in source.health.signs(time.time_ns())} == {"gpu_silent"}
    assert source.gauges["gpus"] == 0
    driver.answers.set()
    until(lambda: source.sample() and source.health.signs(time.time_ns()) == ())


class Gpus:
    """A sampler of GPUs. `blind` says why it has none."""

    lost, complete, count = (), True, 1

    def __init__(self, blind=""):
        self.blind = blind

    def identities(self):
        return [{"index": 0, "uuid": "GPU-1", "pci": "0000:18:00.0"}] if not self.blind else []

    def events(self):
        return None

    def inventory(self, now_ns):
        return columns("events", 1, kind=["gpus"])

    def sample(self, now_ns):
        return gpu_metrics("n0", [("GPU-1", "gpu_lost", 0.0)], now_ns)


def until(holds):
    deadline_s = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


class Tries:
    """An opener whose driver gives these samplers, one for each try. None: it hangs."""

    def __init__(self, *gpus, expected=True):
        self.gpus, self.now_s, self.hangs = list(gpus), 0.0, threading.Event()
        self.opener = GpuOpener(self.make, expected=expected, clock_s=lambda: self.now_s)

    def make(self):
        gpus = self.gpus.pop(0)
        if gpus is None:
            self.hangs.wait(10)
            gpus = self.gpus.pop(0)
        return gpus

    def source(self):
        return HardwareSource((), KernelLog(blind="not permitted"), 1.0, opener=self.opener)


def test_a_driver_that_is_not_ready_is_asked_again_each_minute():
    tries = Tries(Gpus("NVML: Driver Not Loaded"), Gpus("NVML: Driver Not Loaded"), Gpus())
    source = tries.source()
    tries.opener.wait()
    assert not source.blind
    for seconds, left in ((0, 2), (59, 2), (60, 1), (119, 1), (120, 0)):
        tries.now_s = seconds
        source.sample()
        until(lambda left=left: len(tries.gpus) == left)
    until(lambda: source.sample() and source.gauges["gpus"] == 1)
    assert [gpu.uuid for gpu in source.health.identities] == ["GPU-1"]
    assert {batch.record for batch in source.take(0)} == {"metrics", "events"}


@pytest.mark.parametrize(("blind", "expected"), [("NVML: Driver Not Loaded", False), (NOT_INSTALLED, True)])
def test_a_machine_without_gpus_or_binding_is_asked_once(blind, expected):
    tries = Tries(Gpus(blind), Gpus(), expected=expected)
    tries.opener.wait()
    source = tries.source()
    source.seek_gpus(0)
    assert source.blind
    tries.now_s = 1000.0
    source.sample()
    assert len(tries.gpus) == 1


def test_gpus_of_a_driver_that_answers_late_are_watched_and_the_sign_ends():
    tries = Tries(None, Gpus())
    source = tries.source()
    source.sample()
    assert source.health.signs(0) == ()
    tries.now_s = 70.0
    source.sample()
    (sign,) = source.health.signs(0)
    assert (sign.kind, round(sign.value)) == ("gpu_silent", 70)
    tries.hangs.set()
    until(lambda: source.sample() and source.gauges["gpus"] == 1)
    assert source.health.signs(time.time_ns()) == ()
