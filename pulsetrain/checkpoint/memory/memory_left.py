"""How much memory can still be taken before the kernel ends a process for it.

The machine counts, and every control group above this process that has a limit. Page cache that can be given
back and swap space count as free. Formats: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pulsetrain.core.errors import MemoryShort
from pulsetrain.core.memory_total import control_groups, number_in, numbers_in

MemoryLeft = Callable[[], int | None]
"""The bytes that can still be taken. None: nobody knows."""

RESERVE_RATIO, MOST_RESERVE_BYTES = 1 / 16, 64 << 20  # left for others, of what is taken


def memory_left(proc: Path = Path("/proc"), mounts: Path = Path("/sys/fs/cgroup")) -> int | None:
    """The bytes that this process can still take. None where nothing says how many."""
    machine = numbers_in(proc / "meminfo", 1024)
    swap = machine.get("SwapFree:", 0)
    left = [
        _left_v1(group, swap) if v1 else _left_v2(group, swap) for group, v1 in control_groups(proc, mounts)
    ]
    if "MemAvailable:" in machine:
        left.append(machine["MemAvailable:"] + swap + _zfs_cache(proc))
    return min((one for one in left if one is not None), default=None)


def check_left(what: str, need: int, left: MemoryLeft) -> None:
    """Raises `MemoryShort`, with the numbers, where `need` bytes and a reserve are more than what is left."""
    available = left() if need > 0 else None
    if available is not None and need + min(need * RESERVE_RATIO, MOST_RESERVE_BYTES) > available:
        mb = f"{need / 1e6:.1f} MB more memory, {max(0, available) / 1e6:.1f} MB are left"
        raise MemoryShort(f"{what} needs {mb}")


def _left_v2(group: Path, swap: int) -> int | None:
    limit, used = number_in(group / "memory.max"), number_in(group / "memory.current")
    if limit is None or used is None:
        return None
    most_swap, swapped = number_in(group / "memory.swap.max"), number_in(group / "memory.swap.current")
    if most_swap is not None and swapped is not None:
        swap = min(swap, max(0, most_swap - swapped))
    return limit - used + _cache(group, "") + swap


def _left_v1(group: Path, swap: int) -> int | None:
    limit, used = number_in(group / "memory.limit_in_bytes"), number_in(group / "memory.usage_in_bytes")
    if limit is None or used is None:
        return None
    left = limit - used + _cache(group, "total_") + swap
    both, used = (
        number_in(group / "memory.memsw.limit_in_bytes"),
        number_in(group / "memory.memsw.usage_in_bytes"),
    )
    return left if both is None or used is None else min(left, both - used + _cache(group, "total_"))


def _cache(group: Path, prefix: str) -> int:
    """Pages of files, which the kernel gives back before it ends a process. Not those of shared memory."""
    stat = numbers_in(group / "memory.stat", 1)
    names = ("inactive_file", "active_file", "slab_reclaimable")
    return sum(stat.get(prefix + name, 0) for name in names)


def _zfs_cache(proc: Path) -> int:
    """What ZFS gives back when memory is short. MemAvailable leaves it out."""
    try:
        rows = (line.split() for line in (proc / "spl/kstat/zfs/arcstats").read_text().splitlines()[2:])
        stats = {name: int(data) for name, _, data in rows}
        return max(0, stats["size"] - stats["c_min"])
    except (OSError, ValueError, KeyError):
        return 0
