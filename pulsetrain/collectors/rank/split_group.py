"""A process group with a backend for the host and another one for devices, as `cpu:gloo,cuda:nccl`.

Each backend runs its operations in an order of its own. A thread that saves a checkpoint may gather objects
on the host between collectives of the main thread on devices, on each rank between others. Under one
numbering such ranks would seem to be in different operations. So each side has numbers and a cell of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsetrain.collectors.rank.operations import Group

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import PostHookArgs, PreHookArgs


class SplitGroup:
    """Passes each operation to the side that its tensors are on. One without tensors is the device's."""

    def __init__(self, device: Group, host: Group) -> None:
        self.device, self.host = device, host

    def before(self, call: PreHookArgs) -> None:
        """See `Group.before`."""
        try:
            tensors = call.input_tensors or call.output_tensors
            group = self.on(tensors[0].device if tensors else None)
        except Exception:  # noqa: BLE001 - a hook that raises would fail the collective; the status page counts
            self.device.state.fault()
            return
        group.before(call)

    def after(self, call: PostHookArgs) -> None:
        """See `Group.after`."""
        group = self.host if call.op_id in self.host.in_flight else self.device
        group.after(call)

    def on(self, device: torch.device | None) -> Group:
        """Return the side on which operations on `device` run."""
        return self.host if device is not None and device.type == "cpu" else self.device
