"""Put the collectives' hooks where torch calls them: on every process group, and on what waits.

Groups are hooked as torch registers them, however they come to be: `init_process_group`, `new_group`,
`split_group`, a `DeviceMesh`. This is the one place that knows names of torch's own internals.
"""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

import torch

from pulsetrain.collectors.rank.collectives import Tracker
from pulsetrain.collectors.rank.handle import Handle

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.distributed_c10d import _World

P = ParamSpec("P")
T = TypeVar("T")


def install(handle: Handle) -> None:
    """Hook all process groups that exist and all that will. Call it once."""
    import torch.distributed as dist

    if handle.state is None or not dist.is_available():
        return
    tracker = Tracker(handle.state)
    _hook_groups(tracker)
    _hook_waits(tracker)
    handle.state.gives_device_in_waits = True
    handle.before_restart.append(tracker.forget)
    handle.profiler.watch()


def _hook_groups(tracker: Tracker) -> None:
    from torch.distributed import distributed_c10d as c10d

    def watched_registration(register: Callable[P, T]) -> Callable[P, T]:
        def registered(*args: P.args, **kwargs: P.kwargs) -> T:
            tracker.retire(c10d._world.pg_map)
            result = register(*args, **kwargs)
            _attach(tracker, kwargs["pg"] if "pg" in kwargs else args[0], c10d._world)
            return result

        return registered

    _wrap(c10d, "_register_pg_in_world", watched_registration)
    for pg in list(c10d._world.pg_map):
        _attach(tracker, pg, c10d._world)
    atexit.register(lambda: tracker.detach(c10d._world.pg_map))


def _members(world: _World, name: str, size: int, position: int) -> Sequence[int]:
    """Return the global ranks of the group of this name. A hook that held its group would keep it alive.

    `position`: this rank's in the group.
    """
    own = world.default_pg
    numbered = len(world.pg_group_ranks.get(own) or ()) if own is not None else 0
    for pg, known in world.pg_names.items():
        if known == name:
            members = tuple(world.pg_group_ranks.get(pg) or range(size))
            return of_job(members, position, os.environ, numbered)
    return of_job(tuple(range(size)), position, os.environ, numbered)


def of_job(
    members: tuple[int, ...], position: int, environ: Mapping[str, str], numbered: int = 0
) -> tuple[int, ...]:
    """Return a group's members as the job's ranks. Where torch's numbers are others, only this rank is known.

    A script may make a world of some of the job's ranks, or of processes outside it. torch numbers from 0.
    The number of a rank alone shows it not: rank 0 of the job is 0 in a world of the even ranks too.
    `numbered`: the ranks of torch's own world, which may be fewer than the job's. 0: there is none.

    >>> of_job((0, 1, 2, 3), 1, {"RANK": "1", "WORLD_SIZE": "8"})
    (0, 1, 2, 3)
    >>> of_job((0, 1, 2, 3), 1, {"RANK": "5", "WORLD_SIZE": "8"})
    (5,)
    >>> of_job((0, 1, 2, 3), 0, {"RANK": "0", "WORLD_SIZE": "2"})
    (0,)
    >>> of_job((0, 1, 2, 3), 0, {"RANK": "0", "WORLD_SIZE": "8"}, numbered=4)
    (0,)
    """
    rank, ranks = environ.get("RANK", ""), environ.get("WORLD_SIZE", "")
    if not rank.isdecimal() or not ranks.isdecimal() or not 0 <= position < len(members):
        return members
    is_own = members[position] == int(rank) and max(members) < int(ranks) and numbered in {0, int(ranks)}
    return members if is_own else (int(rank),)


def _attach(tracker: Tracker, group: object, world: _World) -> None:
    pg = cast("ProcessGroup", group)
    try:
        tracker.attach(
            pg,
            group_name(pg.group_name, pg.group_desc),
            functools.partial(_members, world, pg.group_name, pg.size(), pg.rank()),
        )
    except Exception:  # noqa: BLE001 - a backend without hooks trains on, unseen
        tracker.state.fault()


def group_name(name: str, description: str) -> str:
    """Return what records call a group: torch's unique name, behind its description if it has one.

    >>> group_name("3", "mesh_tp"), group_name("0", "default_pg"), group_name("5", "undefined")
    ('mesh_tp:3', 'world', '5')
    """
    if description == "default_pg":
        return "world"
    return f"{description}:{name}" if description and description != "undefined" else name


def _hook_waits(tracker: Tracker) -> None:
    import torch.distributed as dist
    from torch._C._distributed_c10d import ProcessGroup, Work
    from torch.distributed import c10d_logger

    _wrap(Work, "wait", tracker.watched_wait)
    _wrap(ProcessGroup, "_start_coalescing", tracker.watched_start_of_batch)
    _wrap(ProcessGroup, "_end_coalescing", tracker.watched_end_of_batch)
    _wrap(torch._C.Future, "wait", tracker.watched_wait_for_any)
    _wrap(dist, "_broadcast_coalesced", tracker.watched_call)
    if hasattr(c10d_logger, "_get_msg_dict"):  # only its logger of exceptions calls it
        _wrap(c10d_logger, "_get_msg_dict", tracker.watched_report)
    for owner, name in functional_waits():
        _wrap(owner, name, tracker.watched_wait_for_any)


def functional_waits() -> Iterator[tuple[object, str]]:
    """Yield what the functional collectives' waits call. Compiled graphs call the operators too."""
    from torch.distributed import _functional_collectives as functional

    for name in ("wait_tensor", "wait_tensors"):
        packet = getattr(torch.ops._c10d_functional, name, None)
        overload = getattr(packet, "default", None)
        if packet is not None and hasattr(packet, "_op") and hasattr(overload, "_op"):
            yield packet, "_op"
            yield overload, "_op"
        elif hasattr(functional, name):
            yield functional, name


def _wrap(owner: object, name: str, watched: Callable[[Callable[..., T]], Callable[..., T]]) -> None:
    """Replace `owner.name` by what `watched` makes of it. On a class it becomes a method."""
    original: Callable[..., T] = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(watched(original)))
