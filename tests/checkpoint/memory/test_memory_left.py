"""How much memory is left, in all the places where a limit can be."""

from pathlib import Path

import pytest

from pulsetrain.checkpoint.memory.memory_left import check_left, memory_left
from pulsetrain.core.errors import MemoryShort

GB = 10**9


class Machine:
    """Files of /proc and /sys/fs/cgroup."""

    def __init__(self, folder: Path, cgroup: str = "0::/pod/job\n", *, swap_kb: int = 0) -> None:
        self.proc, self.mounts = folder / "proc", folder / "cgroup"
        self.write(self.proc / "self/cgroup", cgroup)
        self.write(self.proc / "meminfo", f"MemAvailable: 50000000 kB\nSwapFree: {swap_kb} kB\nPages: 3\n")

    def write(self, file: Path, text: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def group(self, path: str, **files: object) -> None:
        for name, value in files.items():
            self.write(self.mounts / path / name.replace("_", ".", name.startswith("memory_")), f"{value}\n")

    def left(self) -> int | None:
        return memory_left(self.proc, self.mounts)


def test_without_a_limit_it_is_what_the_machine_has(tmp_path):
    machine = Machine(tmp_path)
    machine.group("pod/job", memory_max="max", memory_current=7 * GB)
    assert machine.left() == 50_000_000 * 1024


@pytest.mark.parametrize("limited", ["pod/job", "pod", ""])
def test_every_group_above_the_process_counts(tmp_path, limited):
    machine = Machine(tmp_path)
    for path in ("pod/job", "pod", ""):
        limit = 8 * GB if path == limited else "max"
        machine.group(path, memory_max=limit, memory_current=7 * GB)
    assert machine.left() == GB


def test_page_cache_counts_as_free_and_shared_memory_does_not(tmp_path):
    machine = Machine(tmp_path)
    machine.group("pod/job", memory_max=8 * GB, memory_current=8 * GB)
    machine.group(
        "pod/job", memory_stat=f"file {5 * GB}\nshmem {2 * GB}\nactive_file {GB}\ninactive_file {2 * GB}"
    )
    assert machine.left() == 3 * GB


def test_swap_counts_as_far_as_the_group_may_use_it(tmp_path):
    machine = Machine(tmp_path, swap_kb=9 * GB // 1024)
    machine.group("pod/job", memory_max=8 * GB, memory_current=8 * GB)
    assert machine.left() == 9 * GB // 1024 * 1024
    machine.write(machine.mounts / "pod/job/memory.swap.max", f"{2 * GB}")
    machine.write(machine.mounts / "pod/job/memory.swap.current", f"{GB}")
    assert machine.left() == GB


@pytest.mark.parametrize("seen", ["memory/pod/job", "memory"])  # the host's tree, or a container's own group
def test_version_1(tmp_path, seen):
    machine = Machine(tmp_path, "4:memory:/pod/job\n1:cpu:/else\n0::/\n")
    for name, value in (("limit", 8 * GB), ("usage", 7 * GB)):
        machine.write(machine.mounts / seen / f"memory.{name}_in_bytes", f"{value}\n")
    machine.write(machine.mounts / seen / "memory.stat", f"inactive_file 5\ntotal_inactive_file {GB}\n")
    assert machine.left() == 2 * GB
    for name, value in (("limit", 8 * GB), ("usage", 8 * GB)):
        machine.write(machine.mounts / seen / f"memory.memsw.{name}_in_bytes", f"{value}\n")
    assert machine.left() == GB


def test_the_cache_of_zfs_counts_as_free(tmp_path):
    machine = Machine(tmp_path)
    stats = f"13 1 0x01 123 33456 1 2\nname type data\nc_min 4 {GB}\nsize 4 {4 * GB}\n"
    machine.write(machine.proc / "spl/kstat/zfs/arcstats", stats)
    assert machine.left() == 50_000_000 * 1024 + 3 * GB


def test_where_nothing_can_be_read_nothing_is_refused(tmp_path):
    assert memory_left(tmp_path, tmp_path) is None
    check_left("a checkpoint", 10**15, lambda: None)


def test_what_is_short_is_said_with_numbers():
    check_left("a checkpoint", GB, lambda: GB + (64 << 20))
    check_left("a checkpoint", 0, lambda: -5)
    with pytest.raises(MemoryShort, match=r"a checkpoint needs 1000.0 MB more memory, 1000.0 MB are left"):
        check_left("a checkpoint", GB, lambda: GB)


def test_this_machine_says_something():
    assert (memory_left() or 1) > 0
