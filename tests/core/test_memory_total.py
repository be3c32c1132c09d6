"""The memory that a process may use, by files as Linux writes them."""

from __future__ import annotations

import pytest

from pulsetrain.core.memory_total import memory_total

GIB = 1 << 30


@pytest.fixture
def linux(tmp_path):
    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return memory_total(tmp_path / "proc", tmp_path / "cgroup")

    return write


MACHINE = {"proc/meminfo": f"MemTotal: {64 * GIB // 1024} kB\nMemFree: 5 kB\n"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        (MACHINE, 64 * GIB),
        (MACHINE | {"proc/self/cgroup": "0::/a/b\n", "cgroup/a/b/memory.max": "max\n"}, 64 * GIB),
        (MACHINE | {"proc/self/cgroup": "0::/a/b\n", "cgroup/a/memory.max": f"{GIB}\n"}, GIB),
        (MACHINE | {"proc/self/cgroup": "0::/../x\n", "cgroup/memory.max": f"{GIB}\n"}, GIB),
        (
            MACHINE
            | {
                "proc/self/cgroup": "3:cpu:/a\n4:memory:/a\n",
                "cgroup/memory/a/memory.limit_in_bytes": f"{GIB}",
            },
            GIB,
        ),
    ],
)
def test_the_smallest_limit_counts(linux, files, expected):
    assert linux(files) == expected
