"""The verdict from Flight Recorder dumps: recorded cases, modelled cases, and files that are not dumps."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pulsetrain.analytics.flight_recorder import load, read, verdict
from pulsetrain.stream.errors import CorruptData, UsageError
from tests.analytics.recorded_job import Job, dump, run, write

ROOT = Path(__file__).parents[2]
CASES = Path(os.environ.get("PULSETRAIN_TEST_DATA", ROOT / "../shared/data")) / "flight-recorder"
recorded = pytest.mark.skipif(not CASES.is_dir(), reason="no recorded dumps: PULSETRAIN_TEST_DATA")


@recorded
def test_recorded_cases_are_told_exactly():
    truth = json.loads((CASES / "truth.json").read_text())
    for name, expected in truth.items():
        found = verdict(CASES / name)
        assert (found["verdict"], found["culprits"]) == ("rank", expected["culprits"]), name


@recorded
def test_renaming_files_changes_nothing(tmp_path):
    name, expected = next(iter(json.loads((CASES / "truth.json").read_text()).items()))
    for number, path in enumerate(sorted((CASES / name).iterdir())):
        shutil.copy(path, tmp_path / f"host-7.trace{number + 40}.bin")
    assert verdict(tmp_path)["culprits"] == expected["culprits"]


@given(
    stops=st.dictionaries(st.integers(0, 15), st.integers(5, 50), min_size=1, max_size=2),
    kind=st.sampled_from(["host", "dead"]),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_host_that_stopped_is_named_and_nobody_else(stops, kind, tmp_path_factory):
    # The second fault never shows where its rank already waited for the first before it came to it.
    recording = run(Job(), host_stops=stops)
    reached = {r for r, at in stops.items() if recording.enqueued[r] == at}
    dead = sorted(reached) if kind == "dead" else []
    found = verdict(write(recording, tmp_path_factory.mktemp("dumps"), dead=dead))
    assert found["verdict"] == "rank"
    assert set(found["culprits"]) <= reached
    assert found["culprits"]


def test_of_two_hosts_that_stop_at_different_times_both_are_mostly_named(tmp_path_factory):
    rng = random.Random(4)
    exact = 0
    for _ in range(120):
        stops = {rng.randrange(16): rng.randint(5, 50), rng.randrange(16): rng.randint(5, 50)}
        recording = run(Job(), host_stops=stops, ahead=rng.choice([4, 8, 12]))
        reached = {r for r, at in stops.items() if recording.enqueued[r] == at}
        found = set(verdict(write(recording, tmp_path_factory.mktemp("dumps")))["culprits"])
        assert found <= reached
        exact += found == reached
    assert exact >= 108


@pytest.mark.parametrize("pair", [(9, 14), (0, 15), (2, 3), (1, 9)])
@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("complete", [False, True])
def test_two_hosts_that_stop_together_are_both_named(pair, as_json, complete, tmp_path):
    recording = run(Job(), host_stops=dict.fromkeys(pair, 20))
    found = verdict(write(recording, tmp_path, as_json=as_json, complete=complete))
    assert found["culprits"] == list(pair)


@pytest.mark.parametrize("culprit", range(16))
def test_a_device_that_stopped_is_told_by_what_the_others_started(culprit, tmp_path):
    recording = run(Job(), device_stops={culprit: 21})
    for rank in range(16):
        content = dump(recording, rank, timing=True)
        if rank == culprit:
            for entry in content["entries"]:
                entry["state"], entry["time_discovered_started_ns"] = "scheduled", None
        (tmp_path / f"_dump_{rank}").write_bytes(pickle.dumps(content))
    assert verdict(tmp_path)["culprits"] == [culprit]


def test_a_device_that_stopped_without_timing_is_never_blamed_on_another_rank(tmp_path):
    for culprit in (0, 5, 9):
        found = verdict(write(run(Job(), device_stops={culprit: 21}), tmp_path))
        assert set(found["culprits"]) <= {culprit}


def test_a_rank_in_another_operation_is_a_desync(tmp_path):
    recording = run(Job(), device_stops=dict.fromkeys((0, 1, 2, 3), 10))
    write(recording, tmp_path)
    content = dump(recording, 2)
    head = content["entries"][0]
    assert not head["is_p2p"]
    head["profiling_name"] = "nccl:broadcast"
    (tmp_path / "_dump_2").write_bytes(pickle.dumps(content))
    found = verdict(tmp_path)
    assert (found["verdict"], found["culprits"]) == ("desync", [2])


def test_a_missing_rank_is_no_obstacle(tmp_path):
    recording = run(Job(), host_stops={9: 20})
    write(recording, tmp_path, dead=[3])
    found = verdict(tmp_path)
    assert 9 in found["culprits"]
    assert any("3" in note for note in found["notes"])


def test_a_finished_job_has_no_culprit(tmp_path):
    found = verdict(write(run(Job()), tmp_path))
    assert (found["verdict"], found["culprits"]) == ("none", [])


def test_a_part_of_coalesced_transfers_takes_the_state_of_the_whole(tmp_path):
    recording = run(Job(), host_stops={9: 20})
    for rank in range(16):
        content = dump(recording, rank, complete=True)
        wrapped = []
        for entry in content["entries"]:
            wrapped.append({**entry, "state": "scheduled", "time_discovered_completed_ns": None})
            if entry["is_p2p"]:
                wrapped.append({**entry, "profiling_name": "nccl:coalesced"})
            else:
                wrapped[-1] = entry
        (tmp_path / f"_dump_{rank}").write_bytes(pickle.dumps({**content, "entries": wrapped}))
    assert verdict(tmp_path)["culprits"] == [9]


class _Evil:
    def __reduce__(self):
        return (os.mkdir, (str(Path.cwd() / "never-made"),))


def test_a_dump_that_names_code_is_refused_and_its_rank_counts_as_silent(tmp_path):
    write(run(Job(), host_stops={9: 20}), tmp_path)
    (tmp_path / "_dump_9").write_bytes(pickle.dumps({"entries": [_Evil()], "pg_config": {}}))
    found = verdict(tmp_path)
    assert found["culprits"] == [9]
    assert any("mkdir" in note for note in found["notes"])
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


def test_a_few_dumps_of_many_ranks_blame_nobody_for_being_absent(tmp_path):
    recording = run(Job(), host_stops={9: 20})
    write(recording, tmp_path, dead=range(4, 16))
    found = verdict(tmp_path)
    assert (found["verdict"], found["culprits"]) == ("uncertain", [])
    assert "4 of 16 ranks" in found["reason"]


def test_dumps_of_another_job_are_noted_and_left_out(tmp_path):
    write(run(Job(), host_stops={9: 20}), tmp_path)
    for path in tmp_path.iterdir():
        content = pickle.loads(path.read_bytes())
        content["pg_config"]["0x"] = {"desc": "default_pg", "ranks": str(list(range(16)))}
        path.write_bytes(pickle.dumps(content))
    stray = {"pg_config": {"0": {"desc": "default_pg", "ranks": "[0, 1]"}}, "entries": [], "rank": 1}
    (tmp_path / "_dump_other").write_bytes(pickle.dumps(stray))
    found = verdict(tmp_path)
    assert found["culprits"] == [9]
    assert "_dump_other: of a world of 2 ranks, the others of 16" in found["notes"]


def test_a_file_larger_than_any_dump_is_not_read(tmp_path):
    write(run(Job(), host_stops={9: 20}), tmp_path)
    with (tmp_path / "_dump_9").open("r+b") as file:
        file.truncate(1 << 40)
    found = verdict(tmp_path)
    assert found["culprits"] == [9]
    assert any("1,099,511,627,776 bytes" in note for note in found["notes"])


JUNK = st.one_of(
    st.none(), st.integers(), st.floats(), st.text(max_size=3), st.lists(st.integers(), max_size=2),
    st.just({}), st.just("nccl:send 0->99"),
)  # fmt: skip


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_wrong_values_are_a_verdict_or_one_line(data, tmp_path_factory):
    folder = write(run(Job(), host_stops={9: 20}), tmp_path_factory.mktemp("dumps"))
    path = folder / "_dump_2"
    content = pickle.loads(path.read_bytes())
    spot = content
    for _ in range(data.draw(st.integers(0, 3))):
        inner = list(spot.values()) if isinstance(spot, dict) else spot
        inner = [x for x in inner if isinstance(x, dict | list) and x]
        if not inner:
            break
        spot = data.draw(st.sampled_from(inner))
    place = data.draw(st.sampled_from(sorted(spot) if isinstance(spot, dict) else range(len(spot))))
    spot[place] = data.draw(JUNK)
    path.write_bytes(pickle.dumps(content))
    assert verdict(folder)["verdict"] in ("rank", "network", "desync", "none", "uncertain")
