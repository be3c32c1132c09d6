"""Begins a new attempt in a process that has lived through one: with a new ring, from another step."""

from __future__ import annotations

from pulsetrain.collectors.layout import STACK_AT
from pulsetrain.collectors.rank.handle import Handle
from pulsetrain.collectors.rank.hold import HoldPoint


def end_attempt(handle: Handle) -> None:
    """Let everything end that works for the attempt which is over. What fails in it is counted."""
    for end in list(handle.before_restart):
        try:
            end()
        except Exception:  # noqa: BLE001 - one that fails must not keep the others from ending
            handle.fault()


def renew(handle: Handle, ring_fd: int, restore_step: int) -> None:
    """Write to the ring of the new attempt from now on. The next step to run is behind `restore_step`.

    Only the main thread may call it, while no other one uses the handle. -1: steps count from 0.
    """
    state = handle.state
    if state is None:
        return
    state.ring.move_to(ring_fd)
    state.top, state.parent, state.blocked = STACK_AT, 0, 0
    state.enter_step(0)
    if handle.description is not None:
        handle.description.write_again()
    handle.begin_again()
    handle.hold = HoldPoint()
    if restore_step >= 0:
        handle.resume(restore_step + 1)
