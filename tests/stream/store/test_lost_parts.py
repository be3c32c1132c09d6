"""An insert of which a kill left only the token is stored when it is repeated."""

import shutil
import subprocess
import sys

import pytest

from pulsetrain.stream.store.lost_parts import forget_lost_parts
from tests.repository import ROOT

HUB = """
import sys
from pulsetrain.stream.store.clickhouse import open_store
from tests.stream.rows import table

store = open_store(f"chdb://{sys.argv[1]}")
store.migrate()
for token in sys.argv[2:]:
    store.insert("events", table("events", 3, job="j"), token=token)
print(store.query("SELECT count() AS n FROM events").to_pylist()[0]["n"])
store.close()
"""


def stored(folder, *tokens):
    """Insert three rows for each token in a process of its own. The rows that are there then."""
    done = subprocess.run(
        [sys.executable, "-c", HUB, str(folder), *tokens],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout.split()[-1])


@pytest.mark.integration
def test_rows_whose_part_was_lost_come_back_and_others_are_not_doubled(tmp_path):
    assert stored(tmp_path, "a", "b") == 6
    logs = [path for path in tmp_path.glob("store/*/*/deduplication_logs/*_1.txt") if path.read_bytes()]
    (of_events,) = [path for path in logs if path.read_bytes().count(b"\n") == 2]
    lost = of_events.read_text().splitlines()[-1].split("\t")[1]
    shutil.rmtree(of_events.parents[1] / lost)
    assert stored(tmp_path, "a", "b") == 6
    assert stored(tmp_path, "a", "b") == 6


@pytest.fixture
def table(tmp_path):
    """A table of an engine, with parts and the log of their tokens."""
    made = tmp_path / "store" / "3cc" / "3cc1"
    (made / "deduplication_logs").mkdir(parents=True)
    (made / "2026_1_4_1").mkdir()
    return made


def write(table, text, number=1):
    file = table / "deduplication_logs" / f"deduplication_log_{number}.txt"
    file.write_text(text)
    return file


@pytest.mark.parametrize("newest", ["2026_4_4_0", "2026_2_2_0"])
def test_a_part_that_was_merged_into_another_is_there(table, tmp_path, newest):
    file = write(table, f"1\t2026_3_3_0\tx\n1\t{newest}\ty\n")
    assert forget_lost_parts(tmp_path) == []
    assert file.read_text().endswith("y\n")


def test_parts_that_a_mutation_has_renamed_are_there(table, tmp_path):
    (table / "2026_5_9_1_12").mkdir()
    for part in ("2026_6_6_0", "2026_9_9_0_12"):
        write(table, f"1\t{part}\ty\n")
        assert forget_lost_parts(tmp_path) == []


def test_a_disk_that_refuses_keeps_nobody_from_the_folder(table, tmp_path, monkeypatch):
    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    file = write(table, "1\t2026_9_9_0\ty\n")
    assert forget_lost_parts(tmp_path) == []
    assert file.read_text() == "1\t2026_9_9_0\ty\n"
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize("newest", ["2026_5_5_0", "2025_2_2_0"])
def test_only_the_newest_token_is_taken_back(table, tmp_path, newest):
    file = write(table, f"1\t2026_9_9_0\tx\n1\t{newest}\ty\n")
    write(table, "", number=2)
    assert forget_lost_parts(tmp_path) == [newest]
    assert file.read_text() == "1\t2026_9_9_0\tx\n"


@pytest.mark.parametrize(
    "text", ["", "2\t2026_9_9_0\ty\n", "1\t2026_9_9_0\ty", "1 2026_9_9_0 y\n", "1\todd\ty\n"]
)
def test_a_log_that_is_not_understood_or_ends_with_a_removal_stays(table, tmp_path, text):
    file = write(table, text)
    assert forget_lost_parts(tmp_path) == []
    assert file.read_text() == text
