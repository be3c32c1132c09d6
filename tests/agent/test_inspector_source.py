"""The agent follows the Inspector's files of its own ranks, and says what it could not read."""

from pathlib import Path

import pytest

from pulsetrain.agent.inspector_source import STAYS_S, InspectorSource, folder_of
from tests.collectors.machine.test_nccl_inspector import line


class Site:
    """A node of ranks 4 and 5 on the host h, whose time stands still until a test moves it."""

    def __init__(self, folder, **options):
        self.now_s, self.ranks, self.folder = 0.0, {4: 100, 5: 101}, folder
        self.source = InspectorSource(
            "n1", folder, lambda: self.ranks, host="h", clock=lambda: self.now_s, **options
        )

    def write(self, pid, *seqs):
        with (self.folder / f"h-pid{pid}.log").open("a") as file:
            file.write("".join(f"{line(seq)}\n" for seq in seqs))

    def read(self):
        """Operations so far by rank, of those that did any, and what was lost."""
        self.source.sample()
        rows = [row for batch in self.source.take(0) for row in batch.to_rows()]
        assert all(row["node"] == "n1" for row in rows)
        found = {r["device"].split(",")[0]: r["value"] for r in rows if r["name"] == "nccl_operations"}
        return found, {r["name"]: r["value"] for r in rows if not r["device"]}


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def test_files_of_own_ranks_are_summed_up_and_those_of_others_are_not_touched(site):
    site.write(100, 1, 2)
    site.write(101, 1)
    site.write(999, 1, 2, 3)
    assert site.read() == ({"rank 4": 2.0, "rank 5": 1.0}, {})
    assert site.read() == ({}, {})
    site.write(101, 2)
    assert site.read() == ({"rank 5": 2.0}, {})


def test_what_a_rank_writes_at_its_end_is_read_too_and_then_it_is_forgotten(site):
    site.read()
    site.ranks = {4: 200}
    site.write(101, 1)
    site.now_s += STAYS_S / 2
    assert site.read()[0] == {"rank 5": 1.0}
    site.now_s += STAYS_S
    site.write(101, 2)
    site.write(200, 1)
    assert site.read()[0] == {"rank 4": 1.0}


def test_what_is_not_read_is_told_also_of_processes_that_ended(site):
    with (site.folder / "h-pid100.log").open("w") as file:
        file.write("junk\n")
    site.write(100, 1)
    assert site.read()[1] == {"nccl_inspector_bad_lines": 1.0}
    site.ranks = {5: 101}
    site.now_s += STAYS_S + 1
    site.write(101, 1)
    assert site.read()[1] == {"nccl_inspector_bad_lines": 1.0}


def test_without_a_folder_nothing_runs(tmp_path):
    source = InspectorSource.of_node("n1", {}, dict)
    source.start()
    assert (source.loops, source.take(0)) == ((), [])
    source.stop()


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"NCCL_INSPECTOR_ENABLE": "1", "NCCL_INSPECTOR_DUMP_DIR": "/d"}, Path("/d")),
        ({"NCCL_INSPECTOR_DUMP_DIR": "/d"}, None),
        ({"NCCL_INSPECTOR_ENABLE": "1"}, None),
        ({"NCCL_INSPECTOR_ENABLE": "0", "NCCL_INSPECTOR_DUMP_DIR": "/d"}, None),
        (
            {"NCCL_INSPECTOR_ENABLE": "1", "NCCL_INSPECTOR_DUMP_DIR": "/d", "NCCL_INSPECTOR_PROM_DUMP": "1"},
            None,
        ),
    ],
)
def test_the_folder_is_that_of_the_ranks_environment(environ, folder):
    assert folder_of(environ) == folder
