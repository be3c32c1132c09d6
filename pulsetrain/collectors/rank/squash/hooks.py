"""Puts squashing into a rank, where the agent has given it the memory for that.

torch's public hooks run before and after an optimizer's step, and none of them can leave out the step
between them. So the function by which torch puts them around the step of each class,
`Optimizer.profile_hook_step`, is replaced by one that puts squashing inside them first. Hooks of the script
see gradients and updated parameters as ever. While nobody shares a device, a step costs one look at a word
more.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

from pulsetrain.collectors.rank.handle import Handle
from pulsetrain.collectors.rank.squash.cell import Page
from pulsetrain.collectors.squash_layout import MAX_RANKS

SQUASH_FD = "PULSETRAIN_SQUASH_FD"


def install(handle: Handle) -> None:
    """Squash the updates of all optimizers that are made from now on."""
    page = _page(os.environ)
    if handle.state is None or page is None:
        return
    import torch

    from pulsetrain.collectors.rank.squash.squasher import Squasher

    squasher = Squasher(handle.state, page, int(os.environ.get("RANK", "0")))
    handle.before_restart.append(squasher.begin_again)
    os.register_at_fork(before=lambda: _before_fork(squasher, handle))
    original = torch.optim.Optimizer.profile_hook_step

    @functools.wraps(original)
    def profile_hook_step(step: Callable[..., Any]) -> Callable[..., Any]:
        return original(squashed(step, squasher, page, handle))

    torch.optim.Optimizer.profile_hook_step = staticmethod(profile_hook_step)  # type: ignore[assignment, method-assign]


def _before_fork(squasher: Any, handle: Handle) -> None:
    """In a process that was forked itself, the memory belongs to its parent."""
    if handle.state is None:
        return
    try:
        squasher.before_fork()
    except Exception:  # noqa: BLE001 - the script must not see our faults
        handle.fault()


def squashed(step: Callable[..., Any], squasher: Any, page: Page, handle: Handle) -> Callable[..., Any]:
    """As an optimizer's `step`, which the replicas of a device compute once."""
    import torch

    @functools.wraps(step)
    def update(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        if handle.state is None or torch.compiler.is_compiling():
            return step(optimizer, *args, **kwargs)
        plain = not args and not any(value is not None for value in kwargs.values())
        return squasher.step(optimizer, lambda: step(optimizer, *args, **kwargs), plain=plain)

    return update


def _page(environ: Mapping[str, str]) -> Page | None:
    fd, local_rank = environ.get(SQUASH_FD, ""), environ.get("LOCAL_RANK", "")
    if not fd.isdecimal() or not local_rank.isdecimal() or int(local_rank) >= MAX_RANKS:
        return None
    return Page(int(fd), int(local_rank))
