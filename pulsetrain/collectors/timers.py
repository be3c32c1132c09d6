"""Times and numbers on a CUDA device, through events that are queried and never waited for."""

from __future__ import annotations

from typing import Any


class DeviceNumber:
    """A one-element CUDA tensor on its way to the host: copied to pinned memory behind the work before it."""

    __slots__ = ("_event", "_host")

    def __init__(self, tensor: Any) -> None:
        import torch

        self._host = torch.empty((), dtype=torch.float64, pin_memory=True)
        self._host.copy_(tensor.detach().reshape(()), non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record(torch.cuda.current_stream(tensor.device))

    def ready(self) -> bool:
        """Whether the copy has ended; one event query."""
        return bool(self._event.query())

    def value(self) -> float:
        """The number; only after `ready`."""
        return float(self._host)
