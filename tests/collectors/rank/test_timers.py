"""Device times from events that are only queried: laws on a simulated device, and on a real one."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.collectors.rank.phases import RankState
from pulsetrain.collectors.rank.ring import RingWriter, create_ring
from pulsetrain.collectors.rank.timers import (
    MAX_PENDING,
    DeviceClock,
    DevicePhase,
    DeviceTimer,
    EventPool,
    device_timer,
)
from pulsetrain.collectors.reading.ring_reader import RingReader

MS = 1_000_000


@dataclass
class Device:
    """A stream whose events pass when `done` reaches them; each takes the time that `passes_ns` gives."""

    passes_ns: list[int] = field(default_factory=list)
    recorded: int = 0
    done: int = 0
    created: int = 0

    def event(self) -> Event:
        self.created += 1
        return Event(self)


class Event:
    def __init__(self, device: Device) -> None:
        self.device, self.number = device, -1

    def record(self) -> None:
        self.number = self.device.recorded
        self.device.recorded += 1

    def query(self) -> bool:
        return self.number < self.device.done

    def elapsed_time(self, end: Event) -> float:
        assert self.query(), "asked before it has passed: a real event would raise"
        assert end.query(), "asked before it has passed: a real event would raise"
        times = self.device.passes_ns
        return (times[end.number] - times[self.number]) / MS


class Watched:
    def __init__(self, device: Device, *, capturing: bool = False) -> None:
        fd = create_ring(1 << 14)
        writer, self.reader = RingWriter(fd), RingReader(fd)
        os.close(fd)
        self.state = RankState(writer)
        self.timer = DeviceTimer(self.state, device.event, lane="cuda:0")
        self.phase = DevicePhase(self.state, writer.intern("forward"), 0, self.timer, lambda: capturing)

    def durations(self) -> list[int]:
        spans = self.reader.drain()[0]
        self.lanes = {self.reader.names[s["lane"]] for s in spans}
        return [int(d) for d in spans["end"] - spans["start"]]


class EventOfADevice(Event):
    """Belongs to the device on which it was first recorded, as CUDA's."""

    current = "cuda:0"

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.at = ""

    def record(self) -> None:
        self.at = self.at or EventOfADevice.current
        if self.at != EventOfADevice.current:
            raise RuntimeError("Event device does not match recording stream's device")
        super().record()

    def elapsed_time(self, end: Event) -> float:
        assert isinstance(end, EventOfADevice)
        if self.at != end.at:
            raise RuntimeError("CUDA error: invalid resource handle")
        return super().elapsed_time(end)


def test_phases_are_timed_after_the_script_has_gone_to_another_device(monkeypatch):
    device = Device(passes_ns=[i * 7 * MS for i in range(100)], done=100)
    watched = Watched(device)
    watched.timer.pool = EventPool(lambda: EventOfADevice(device))
    for current in ("cuda:0", "cuda:1"):
        monkeypatch.setattr(EventOfADevice, "current", current)
        for _ in range(3):
            with watched.phase:
                pass
    assert watched.durations() == [7 * MS] * 6
    assert watched.reader.status().errors == 0


@pytest.mark.parametrize(("used", "timed"), [({1}, False), ({0, 1}, True)])
def test_no_event_is_recorded_on_a_device_that_the_script_does_not_use(monkeypatch, used, timed):
    """A script that never calls `set_device` works on device 1, and its thread's present device is 0."""
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        current_device=lambda: 0,
        is_current_stream_capturing=lambda: False,
        Event=None,
    )
    torch = SimpleNamespace(
        cuda=cuda, _C=SimpleNamespace(_cuda_hasPrimaryContext=lambda device: device in used)
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    ring = create_ring(0)
    try:
        state = RankState(RingWriter(ring))
        assert (device_timer(state) is not None) == timed
    finally:
        os.close(ring)


def test_inside_the_capture_of_a_graph_no_event_is_asked():
    device = Device(passes_ns=[i * 7 * MS for i in range(100)])
    watched = Watched(device)
    with watched.phase:
        pass
    device.done = 2
    watched.timer.capturing = lambda: True
    watched.timer.harvest()
    assert watched.durations() == []
    watched.timer.capturing = lambda: False
    watched.timer.harvest()
    assert watched.durations() == [7 * MS]


def test_a_phase_waits_in_the_queue_until_its_events_have_passed():
    device = Device(passes_ns=[i * 7 * MS for i in range(100)])
    watched = Watched(device)
    for _ in range(3):
        with watched.phase:
            assert watched.reader.status().stack[0].name == "forward"
    assert watched.durations() == []
    device.done = 4
    watched.timer.harvest()
    assert watched.durations() == [7 * MS] * 2
    assert watched.lanes == {"cuda:0"}
    device.done = 6
    watched.timer.harvest()
    assert watched.durations() == [7 * MS]


def test_events_are_used_again():
    device = Device(passes_ns=list(range(0, 10_000 * MS, MS)))
    watched = Watched(device)
    for _ in range(1000):
        with watched.phase:
            pass
        device.done = device.recorded
    assert device.recorded == 2000
    assert device.created <= 8


def test_a_device_that_never_answers_costs_no_memory_and_no_span():
    watched = Watched(Device())
    for _ in range(MAX_PENDING + 50):
        with watched.phase:
            pass
    assert len(watched.durations()) == 50
    assert watched.lanes == {"host"}


def test_inside_a_graph_capture_the_host_times():
    device = Device()
    watched = Watched(device, capturing=True)
    with watched.phase:
        pass
    assert device.recorded == 0
    assert len(watched.durations()) == 1


def test_a_broken_device_is_counted_and_not_raised():
    class Broken(Event):
        def record(self) -> None:
            raise RuntimeError("CUDA error: unspecified launch failure")

    device = Device()
    device.event = lambda: Broken(device)  # type: ignore[method-assign]
    watched = Watched(device)
    with watched.phase:
        pass
    assert watched.reader.status().errors == 1
    assert watched.reader.status().stack == ()


@given(st.lists(st.tuples(st.integers(0, 50 * MS), st.integers(0, 50 * MS)), min_size=2, max_size=60))
def test_events_are_placed_between_their_record_and_their_query(gaps):
    """However deep the queue: none before it was recorded, none after it was seen to have passed."""
    device, clock = Device(), DeviceClock()
    pool = EventPool(device.event)
    host, busy_until = 0, 0
    events = []
    for gap, work in gaps:
        host += gap
        busy_until = max(busy_until, host) + work
        device.passes_ns.append(busy_until)
        events.append((pool.recorded(), host, busy_until))
    device.done = len(events)
    for event, recorded, passed in events:
        placed = clock.host_time(event, recorded, passed)
        assert placed <= passed
        assert placed >= recorded - 2  # rounding to whole nanoseconds


def test_an_idle_device_gives_exact_places():
    device = Device(passes_ns=[5 * MS, 9 * MS, 120_000 * MS, 120_001 * MS])
    device.done = 4
    clock, pool = DeviceClock(), EventPool(device.event)
    for passed in device.passes_ns:
        assert abs(clock.host_time(pool.recorded(), passed, passed + MS) - passed) <= 10_000


@pytest.mark.gpu
def test_a_real_device_times_a_real_kernel():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    from pulsetrain.collectors.rank.handle import Handle

    fd = create_ring(1024)
    handle, reader = Handle(RingWriter(fd)), RingReader(fd)
    matrix = torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    handle.start_clock()
    for _ in range(5):
        with handle.phase("forward"):
            matrix = (matrix @ matrix).clamp(-1, 1)
        handle.log(loss=matrix.mean())
        handle.step()
    torch.cuda.synchronize()
    handle.step()
    spans, steps = reader.drain()
    assert {reader.names[s["lane"]] for s in spans} == {"cuda:0"}
    assert len(spans) == 5
    assert (spans["end"] - spans["start"] > 100_000).all()
    assert len(steps) == 6
    assert steps["flags"][:5].all()
    assert reader.status().errors == 0
