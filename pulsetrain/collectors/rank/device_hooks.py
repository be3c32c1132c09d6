"""Where a rank gives its device away and takes it again: around all that waits for other ranks, and where it
asks in vain whether they are done.

While no device is shared, a wait costs one look at a word more.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from pulsetrain.collectors.layout import W_DEVICE
from pulsetrain.collectors.rank.device_guard import DeviceGuard
from pulsetrain.collectors.rank.device_turns import DeviceTurns, FileLocks
from pulsetrain.collectors.rank.handle import Handle

DEVICES_FD = "PULSETRAIN_DEVICES_FD"

P = ParamSpec("P")
T = TypeVar("T")


def install(handle: Handle) -> None:
    """Take the rank's first turn where it shares a device, and hook what waits for other ranks."""
    fd = os.environ.get(DEVICES_FD, "")
    if handle.state is None or not fd.isdecimal():
        return
    turns = handle.state.turns = DeviceTurns(handle.state, FileLocks(int(fd)))
    handle.before_restart.append(turns.begin_again)
    guard = DeviceGuard(turns)
    turns.on_take = guard.watch
    _hook_waits(turns, all_of_them=not handle.state.gives_device_in_waits)
    atexit.register(turns.leave)
    turns.leave()
    turns.enter()


def _hook_waits(turns: DeviceTurns, *, all_of_them: bool) -> None:
    """Hook what waits for other ranks. The hooks of collectives do so for their own waits, if they are in."""
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        return
    from torch._C import _distributed_c10d as native
    from torch.distributed import distributed_c10d as c10d

    places: list[tuple[object, str]] = [
        (native.Store, "get"),
        (native.Store, "wait"),
        (native.ProcessGroup, "monitored_barrier"),
        (native.Reducer, "_rebuild_buckets"),
        (c10d, "_new_process_group_helper"),
        (dist, "_verify_params_across_processes"),
    ]
    if all_of_them:
        from pulsetrain.collectors.rank.hooks import functional_waits

        places += [(native.Work, "wait"), (torch._C.Future, "wait"), (dist, "_broadcast_coalesced")]
        places += functional_waits()
    for owner, name in places:
        if hasattr(owner, name):
            setattr(owner, name, around(turns, getattr(owner, name)))
    for owner, name in ((native.Work, "is_completed"), (torch._C.Future, "done")):
        setattr(owner, name, asked(turns, getattr(owner, name)))


def around(turns: DeviceTurns, original: Callable[P, T]) -> Callable[P, T]:
    """As `original`, which waits for other ranks. Meanwhile they may have the device."""
    words = turns.words

    @functools.wraps(original)
    def wait(*args: P.args, **kwargs: P.kwargs) -> T:
        if not words[W_DEVICE] and turns.held < 0:
            return original(*args, **kwargs)
        turns.leave()
        try:
            return original(*args, **kwargs)
        finally:
            turns.enter()

    return wait


def asked(turns: DeviceTurns, original: Callable[P, bool]) -> Callable[P, bool]:
    """As `original`, by which a script asks whether other ranks are done. If not, they may have the device.

    A script may ask again and again. Pulsetrain's own hooks ask once, and go on computing.
    """
    words = turns.words

    @functools.wraps(original)
    def ask(*args: P.args, **kwargs: P.kwargs) -> bool:
        done = original(*args, **kwargs)
        if not done and (words[W_DEVICE] or turns.held >= 0):
            asks = str(sys._getframe(1).f_globals.get("__name__", ""))
            if not asks.startswith("pulsetrain."):
                turns.let_pass()
        return done

    return ask
