"""A process as a member of a group that is checked: where it meets the others, and the device of its own.

Every member says in the store which GPUs it sees, as CUDA_VISIBLE_DEVICES allows. Members of one machine see
the same ones, so all of them work out the same distribution: no GPU is given to two members. Where one would
have none, the whole group takes the processors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch.distributed import PrefixStore


@dataclass(frozen=True, kw_only=True)
class Member:
    """Which member of which group this process is, and where the group meets.

    With `processors_only` the group leaves its GPUs alone.
    """

    index: int
    size: int
    store_address: str
    store_port: int
    prefix: str
    timeout_s: float
    processors_only: bool = False


@dataclass(frozen=True, kw_only=True)
class Joined:
    """A member whose process group is there. `gpus` has every member's UUID, and is empty on processors."""

    device: torch.device
    backend: str
    gpus: Sequence[str] = ()


@contextmanager
def joined(me: Member) -> Iterator[Joined]:
    """Be in the default process group: over NCCL if every member has a GPU of its own, else over gloo."""
    import torch.distributed as dist

    store = _store(me)
    member = _on_device(me, store)
    limit = timedelta(seconds=me.timeout_s)
    dist.init_process_group(member.backend, store=store, rank=me.index, world_size=me.size, timeout=limit)
    try:
        yield member
    finally:
        dist.destroy_process_group()


def reason(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]


def own_gpus(visible: Sequence[Sequence[str]]) -> list[str]:
    """Give every member a GPU of its own, of those that it sees. Empty where somebody would have none.

    The first that is free is taken. So members that see the same GPUs take them in order.

    >>> own_gpus([["a", "b"], ["a", "b"]]), own_gpus([["a", "b"], ["a"]])
    (['a', 'b'], ['b', 'a'])
    >>> own_gpus([["a"], ["a"]]), own_gpus([["a"], []])
    ([], [])
    """
    taken: dict[str, int] = {}
    for index in range(len(visible)):
        if not _placed(index, visible, taken, set()):
            return []
    by_member = {index: gpu for gpu, index in taken.items()}
    return [by_member[index] for index in range(len(visible))]


def _placed(index: int, visible: Sequence[Sequence[str]], taken: dict[str, int], tried: set[str]) -> bool:
    """Take a GPU that is free, else one whose member can change to another (Kuhn's augmenting path)."""
    for gpu in visible[index]:
        if gpu not in taken:
            taken[gpu] = index
            return True
    for gpu in visible[index]:
        if gpu not in tried:
            tried.add(gpu)
            if _placed(taken[gpu], visible, taken, tried):
                taken[gpu] = index
                return True
    return False


def visible_gpus() -> list[str]:
    """The UUIDs of the GPUs that this process may use, by their index. They begin with "GPU-", as NVML's."""
    import torch

    return [f"GPU-{torch.cuda.get_device_properties(index).uuid}" for index in range(cuda_count())]


def cuda_count() -> int:
    """How many GPUs CUDA itself lists. torch.cuda.device_count() asks NVML first, which may list more."""
    import torch

    if not torch.cuda.is_available():
        return 0
    return int(getattr(torch._C, "_cuda_getDeviceCount", torch.cuda.device_count)())


def _store(me: Member) -> PrefixStore:
    from torch.distributed import PrefixStore, TCPStore

    limit = timedelta(seconds=me.timeout_s)
    return PrefixStore(me.prefix, TCPStore(me.store_address, me.store_port, is_master=False, timeout=limit))


def _on_device(me: Member, store: PrefixStore) -> Joined:
    import torch

    mine = [] if me.processors_only else visible_gpus()
    store.set(f"gpus/{me.index}", json.dumps(mine))
    gpus = own_gpus([json.loads(store.get(f"gpus/{i}")) for i in range(me.size)])
    if not gpus:
        return Joined(device=torch.device("cpu"), backend="gloo")
    device = torch.device("cuda", mine.index(gpus[me.index]))
    torch.cuda.set_device(device)
    return Joined(device=device, backend="nccl", gpus=gpus)
