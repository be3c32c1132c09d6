"""Folders of Flight Recorder dumps: which files are read, and whose dump each of them is."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.analytics.hangs.flight_files import load, read
from pulsetrain.analytics.hangs.flight_recorder import verdict
from pulsetrain.core.errors import CorruptData, UsageError
from tests.analytics.recorded_job import Job, gloo_dump, run, write, written
from tests.repository import ROOT

CASES = Path(os.environ.get("PULSETRAIN_TEST_DATA", ROOT / "../shared/data")) / "flight-recorder"
recorded = pytest.mark.skipif(not CASES.is_dir(), reason="no recorded dumps: PULSETRAIN_TEST_DATA")


@recorded
def test_renaming_files_changes_nothing(tmp_path):
    name, expected = next(iter(json.loads((CASES / "truth.json").read_text()).items()))
    for number, path in enumerate(sorted((CASES / name).iterdir())):
        shutil.copy(path, tmp_path / f"host-7.trace{number + 40}.bin")
    assert verdict(tmp_path)["culprits"] == expected["culprits"]


class _Evil:
    def __reduce__(self):
        return (os.mkdir, (str(Path.cwd() / "never-made"),))


def test_a_dump_that_names_code_is_refused_and_its_rank_counts_as_silent(tmp_path):
    write(run(Job(), host_stops={9: 20}), tmp_path)
    (tmp_path / "_dump_9").write_bytes(pickle.dumps({"entries": [_Evil()], "pg_config": {}}))
    answer = verdict(tmp_path)
    assert answer["culprits"] == [9]
    assert any("mkdir" in note for note in answer["notes"])
    assert not (Path.cwd() / "never-made").exists()


@given(st.binary(max_size=200))
def test_bytes_that_are_no_dump_are_corrupt_data(data):
    with pytest.raises(CorruptData):
        read(data)


def test_a_truncated_dump_is_noted(tmp_path):
    write(run(Job(), host_stops={9: 20}), tmp_path)
    path = tmp_path / "_dump_4"
    path.write_bytes(path.read_bytes()[:100])
    _, notes = load(tmp_path)
    assert any("_dump_4" in note for note in notes)


@pytest.mark.parametrize("name", ["missing", "."])
def test_no_dumps_is_one_line(tmp_path, name):
    with pytest.raises(UsageError, match="dump"):
        verdict(tmp_path / name)


def test_dumps_of_another_job_are_noted_and_left_out(tmp_path):
    write(run(Job(), host_stops={9: 20}), tmp_path)
    for path in tmp_path.iterdir():
        content = pickle.loads(path.read_bytes())
        content["pg_config"]["0x"] = {"desc": "default_pg", "ranks": str(list(range(16)))}
        path.write_bytes(pickle.dumps(content))
    stray = {"pg_config": {"0": {"desc": "default_pg", "ranks": "[0, 1]"}}, "entries": [], "rank": 1}
    (tmp_path / "_dump_other").write_bytes(pickle.dumps(stray))
    answer = verdict(tmp_path)
    assert answer["culprits"] == [9]
    assert "_dump_other: of a world of 2 ranks, the others of 16" in answer["notes"]


def test_a_file_larger_than_any_dump_is_not_read(tmp_path):
    write(run(Job(), host_stops={9: 20}), tmp_path)
    with (tmp_path / "_dump_9").open("r+b") as file:
        file.truncate(1 << 40)
    answer = verdict(tmp_path)
    assert answer["culprits"] == [9]
    assert any("1,099,511,627,776 bytes" in note for note in answer["notes"])


@pytest.mark.parametrize(
    "name",
    ["nccl_trace_rank_{}", "node-03.x7_trace_{}", "trace{}.json", "0_{}.pickle", "dump_{}.1712345678901"],
)
def test_the_rank_is_read_from_usual_file_names(name, tmp_path):
    for rank in range(4):
        content = gloo_dump(6 - (rank == 2), pending=rank != 2)
        (tmp_path / name.format(rank)).write_bytes(pickle.dumps(content))
    assert verdict(tmp_path)["culprits"] == [2]


def test_json_and_pickle_read_alike():
    content = gloo_dump(3)
    assert read(json.dumps(content).encode()) == read(pickle.dumps(json.loads(json.dumps(content))))


def test_an_object_that_is_no_dump_is_corrupt_data():
    with pytest.raises(CorruptData, match="no entries, pg_config or pg_status"):
        read(b'{"hello": 1}')


def test_a_second_dump_of_a_rank_is_noted_and_left_out(tmp_path):
    written(tmp_path, {0: {**gloo_dump(3), "rank": 0}, 1: {**gloo_dump(3), "rank": 0}})
    dumps, notes = load(tmp_path)
    assert [d.rank for d in dumps] == [0]
    assert notes == ["_dump_1: a second dump of rank 0"]


def test_a_dump_whose_rank_nothing_tells_is_noted(tmp_path):
    (tmp_path / "trace").write_bytes(pickle.dumps(gloo_dump(3)))
    dumps, notes = load(tmp_path)
    assert dumps == []
    assert notes == ["trace: its rank is not known"]


def test_a_dump_is_of_the_one_rank_that_is_in_all_its_groups(tmp_path):
    groups = {"0": {"desc": "tp", "ranks": "[4, 5]"}, "1": {"desc": "dp", "ranks": "[1, 5]"}}
    (tmp_path / "trace").write_bytes(pickle.dumps({**gloo_dump(3), "pg_config": groups}))
    assert [d.rank for d in load(tmp_path)[0]] == [5]


def test_hidden_files_are_no_dumps(tmp_path):
    written(tmp_path, {0: gloo_dump(3)})
    (tmp_path / ".partial").write_bytes(b"junk")
    assert load(tmp_path)[1] == []
