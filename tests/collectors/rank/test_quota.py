"""Time in which a cgroup's quota held the process back."""

from __future__ import annotations

import os

import pytest

from pulsetrain.collectors.rank import quota
from pulsetrain.collectors.rank.quota import Quota


class Machine:
    def __init__(self, folder, lines):
        self.proc, self.mounts = folder / "proc", folder / "cgroup"
        self.proc.mkdir()
        (self.proc / "cgroup").write_text("\n".join(lines) + "\n")

    def group(self, path, stat, members=None):
        folder = self.mounts / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpu.stat").write_text(stat)
        (folder / "cgroup.procs").write_text("\n".join(str(m) for m in members or [os.getpid()]) + "\n")

    @property
    def quota(self):
        return Quota(self.proc, self.mounts)


@pytest.mark.parametrize(
    ("lines", "path", "stat"),
    [
        (
            ["4:memory:/job", "3:cpu,cpuacct:/job", "0::/"],
            "cpu/job",
            "nr_throttled 3\nthrottled_time {}000\n",
        ),
        (["0::/job/r0"], "job/r0", "usage_usec 5\nthrottled_usec {}\n"),
    ],
    ids=["v1", "v2"],
)
def test_what_the_group_was_held_back_since_the_first_call_counts(tmp_path, lines, path, stat):
    machine = Machine(tmp_path, lines)
    machine.group(path, stat.format(700))
    held = machine.quota
    assert held.held_ns() == 0
    machine.group(path, stat.format(950))
    assert held.held_ns() == 250_000


def test_a_group_of_several_processes_tells_nothing(tmp_path):
    machine = Machine(tmp_path, ["0::/job"])
    machine.group("job", "throttled_usec 1\n", members=[os.getpid(), 1])
    held = machine.quota
    held.held_ns()
    machine.group("job", "throttled_usec 900\n", members=[os.getpid(), 1])
    assert held.held_ns() == 0


def test_a_process_that_is_moved_into_a_group_is_followed(tmp_path, monkeypatch):
    machine = Machine(tmp_path, ["0::/"])
    now = [1]
    monkeypatch.setattr(quota, "perf_counter_ns", lambda: now[0])
    held = machine.quota
    assert held.held_ns() == 0
    (machine.proc / "cgroup").write_text("0::/limited\n")
    machine.group("limited", "throttled_usec 100\n")
    now[0] += 2 * quota.REFRESH_NS
    assert held.held_ns() == 0
    machine.group("limited", "throttled_usec 130\n")
    assert held.held_ns() == 30_000


def test_files_that_are_not_there_or_hold_nonsense_give_nothing(tmp_path):
    machine = Machine(tmp_path, ["nonsense"])
    assert machine.quota.held_ns() == 0
    assert Quota(tmp_path / "none", tmp_path).held_ns() == 0
