"""The place in a CUDA stream behind which an operation is over, where torch gives no `Work` of it.

NCCL runs a synchronous operation on the stream of the caller and keeps nothing of it. An event behind it on
that stream tells its end. Such an event holds no tensor.
"""

from __future__ import annotations

from typing import Protocol

import torch


class Event(Protocol):
    """What is used of `torch.cuda.Event`."""

    def query(self) -> bool: ...


class StreamEnd:
    """An event that was recorded behind an operation. Asked like a `Work`.

    `stream`: tells the stream apart from all others. Events of one stream pass in their order.
    """

    __slots__ = ("_event", "stream")

    def __init__(self, event: Event, stream: object) -> None:
        self._event, self.stream = event, stream

    def is_completed(self) -> bool:
        """Return whether the stream has got there. Takes one event query."""
        return bool(self._event.query())


def record(device: torch.device) -> StreamEnd:
    """Record an event on the current stream of a CUDA device. Do not call it inside a capture."""
    stream = torch.cuda.current_stream(device)
    event = torch.cuda.Event()
    event.record(stream)
    return StreamEnd(event, (stream.device_index, stream.cuda_stream))
