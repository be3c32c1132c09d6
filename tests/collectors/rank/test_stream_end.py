"""The event behind a synchronous operation. There is no CUDA here: streams and events are fakes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from pulsetrain.collectors.rank import stream_end


class Event:
    def __init__(self):
        self.stream, self.passed = None, False

    def record(self, stream):
        self.stream = stream

    def query(self):
        return self.passed


@pytest.fixture
def cuda(monkeypatch):
    """Each device's current stream, and the events that were made."""
    made = SimpleNamespace(streams={}, events=[])

    def current_stream(device):
        made.streams[device] = SimpleNamespace(device_index=device.index, cuda_stream=7)
        return made.streams[device]

    def event():
        made.events.append(Event())
        return made.events[-1]

    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    monkeypatch.setattr(torch.cuda, "Event", event)
    return made


def test_the_event_stands_on_the_stream_of_the_operations_own_device(cuda):
    """Not on that of the current device: a rank that has not set it would open a context on device 0."""
    device = torch.device("cuda:5")
    end = stream_end.record(device)
    assert cuda.events[0].stream is cuda.streams[device]
    assert not end.is_completed()
    cuda.events[0].passed = True
    assert end.is_completed()


def test_streams_are_told_apart_by_device_and_number(cuda):
    first, again, other = (stream_end.record(torch.device(name)) for name in ("cuda:0", "cuda:0", "cuda:1"))
    assert first.stream == again.stream
    assert first.stream != other.stream
