"""The verdict from Flight Recorder dumps: recorded cases and modelled cases."""

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

from pulsetrain.analytics.hangs.flight_recorder import verdict
from tests.analytics.recorded_job import Job, dump, gloo_dump, run, write, written
from tests.repository import ROOT

CASES = Path(os.environ.get("PULSETRAIN_TEST_DATA", ROOT / "../shared/data")) / "flight-recorder"
recorded = pytest.mark.skipif(not CASES.is_dir(), reason="no recorded dumps: PULSETRAIN_TEST_DATA")


@recorded
def test_recorded_cases_are_diagnosed_exactly():
    truth = json.loads((CASES / "truth.json").read_text())
    for name, expected in truth.items():
        answer = verdict(CASES / name)
        assert (answer["verdict"], answer["culprits"]) == ("rank", expected["culprits"]), name


@given(
    stops=st.dictionaries(st.integers(0, 15), st.integers(5, 50), min_size=1, max_size=2),
    kind=st.sampled_from(["host", "dead"]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_host_that_stopped_is_named_and_nobody_else(stops, kind, tmp_path_factory):
    # The second fault never shows where its rank already waited for the first before it came to it.
    recording = run(Job(), host_stops=stops)
    reached = {r for r, at in stops.items() if recording.enqueued[r] == at}
    dead = sorted(reached) if kind == "dead" else []
    answer = verdict(write(recording, tmp_path_factory.mktemp("dumps"), dead=dead))
    assert answer["verdict"] == "rank"
    assert set(answer["culprits"]) <= reached
    assert answer["culprits"]


def test_of_two_hosts_that_stop_at_different_times_both_are_mostly_named(tmp_path_factory):
    rng = random.Random(4)
    exact = 0
    for _ in range(60):
        stops = {rng.randrange(16): rng.randint(5, 50), rng.randrange(16): rng.randint(5, 50)}
        recording = run(Job(), host_stops=stops, ahead=rng.choice([4, 8, 12]))
        reached = {r for r, at in stops.items() if recording.enqueued[r] == at}
        answer = set(verdict(write(recording, tmp_path_factory.mktemp("dumps")))["culprits"])
        assert answer <= reached
        exact += answer == reached
    assert exact >= 54


@pytest.mark.parametrize("pair", [(9, 14), (0, 15), (2, 3), (1, 9)])
@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("complete", [False, True])
def test_two_hosts_that_stop_together_are_both_named(pair, as_json, complete, tmp_path):
    recording = run(Job(), host_stops=dict.fromkeys(pair, 20))
    answer = verdict(write(recording, tmp_path, as_json=as_json, complete=complete))
    assert answer["culprits"] == list(pair)


@pytest.mark.parametrize("culprit", range(16))
def test_a_stopped_device_is_named_by_what_the_others_started(culprit, tmp_path):
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
        answer = verdict(write(run(Job(), device_stops={culprit: 21}), tmp_path))
        assert set(answer["culprits"]) <= {culprit}


def test_a_rank_in_another_operation_is_a_desync(tmp_path):
    recording = run(Job(), device_stops=dict.fromkeys((0, 1, 2, 3), 10))
    write(recording, tmp_path)
    content = dump(recording, 2)
    head = content["entries"][0]
    assert not head["is_p2p"]
    head["profiling_name"] = "nccl:broadcast"
    (tmp_path / "_dump_2").write_bytes(pickle.dumps(content))
    answer = verdict(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("desync", [2])


def test_a_missing_rank_is_no_obstacle(tmp_path):
    recording = run(Job(), host_stops={9: 20})
    write(recording, tmp_path, dead=[3])
    answer = verdict(tmp_path)
    assert 9 in answer["culprits"]
    assert any("3" in note for note in answer["notes"])


def test_a_finished_job_has_no_culprit(tmp_path):
    answer = verdict(write(run(Job()), tmp_path))
    assert (answer["verdict"], answer["culprits"]) == ("none", [])


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


def test_a_few_dumps_of_many_ranks_blame_nobody_for_being_absent(tmp_path):
    recording = run(Job(), host_stops={9: 20})
    write(recording, tmp_path, dead=range(4, 16))
    answer = verdict(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("uncertain", [])
    assert "4 of 16 ranks" in answer["reason"]


JUNK = st.one_of(
    st.none(), st.integers(), st.floats(), st.text(max_size=3), st.lists(st.integers(), max_size=2),
    st.just({}), st.just("nccl:send 0->99"),
)  # fmt: skip


@given(data=st.data())
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


@pytest.mark.parametrize("gone", [r for r in range(16) if r != 9])
@pytest.mark.parametrize("stop", [20, 33])
def test_a_missing_dump_is_not_blamed_where_another_rank_is_at_fault(gone, stop, tmp_path):
    answer = verdict(write(run(Job(), host_stops={9: stop}), tmp_path, dead=[gone]))
    excused = (
        [1] if gone == 1 and stop == 20 else []
    )  # nothing is left of the transfer in which it waits for 9
    assert answer["verdict"] == "rank"
    assert [r for r in answer["culprits"] if r not in excused] == [9]
    assert answer["notes"] == [f"no dump of ranks {gone}"]


def test_of_two_missing_dumps_the_one_that_explains_everything_is_blamed(tmp_path):
    groups = {"a": (0, 1), "b": (2, 3), "c": (0, 2), "d": (1, 3)}  # pairs by row and by column
    for rank in (0, 2):
        own = {n: {"desc": n, "ranks": str(list(m))} for n, m in groups.items() if rank in m}
        name = "a" if rank == 0 else "b"
        entry = gloo_dump(5, group=(name, name))["entries"][-1]
        content = {"pg_config": own, "pg_status": {}, "entries": [entry], "rank": rank}
        (tmp_path / f"_dump_{rank}").write_bytes(pickle.dumps(content))
    assert verdict(tmp_path)["culprits"] == [1, 3]  # each alone holds a pair up
    wide = {"w": {"desc": "w", "ranks": "[0, 1, 2, 3]"}, "b": {"desc": "b", "ranks": "[2, 3]"}}
    for rank, name in ((0, "w"), (2, "b")):
        entry = gloo_dump(5, group=(name, name))["entries"][-1]
        content = {"pg_config": wide, "pg_status": {}, "entries": [entry], "rank": rank}
        (tmp_path / f"_dump_{rank}").write_bytes(pickle.dumps(content))
    assert verdict(tmp_path)["culprits"] == [3]


@recorded
def test_recorded_cases_need_no_dumps_of_some_victims(tmp_path):
    rng = random.Random(7)
    for name, expected in json.loads((CASES / "truth.json").read_text()).items():
        innocent = [p for p in (CASES / name).iterdir() if _number(p) not in expected["culprits"]]
        for count in (1, 1, 2, 3, 4):
            gone = rng.sample(sorted(innocent), count)
            folder = tmp_path / f"{name}-{'-'.join(p.name for p in gone)}"
            shutil.copytree(CASES / name, folder, ignore=lambda _, names, g=gone: {p.name for p in g})
            assert verdict(folder)["culprits"] == expected["culprits"], gone


def _number(path):
    return int(path.name.rsplit("_", 1)[1])


def _contents(folder):
    return {_number(p): pickle.loads(p.read_bytes()) for p in folder.iterdir()}


@given(data=st.data())
def test_renaming_ranks_renames_the_answer_and_the_order_of_entries_changes_nothing(data, tmp_path_factory):
    stops = data.draw(st.dictionaries(st.integers(0, 15), st.integers(5, 50), min_size=1, max_size=2))
    names = data.draw(st.permutations(range(16)))
    plain = write(run(Job(), host_stops=stops), tmp_path_factory.mktemp("plain"))
    renamed = tmp_path_factory.mktemp("renamed")
    for rank, content in _contents(plain).items():
        for config in content["pg_config"].values():
            config["ranks"] = json.dumps([names[r] for r in json.loads(config["ranks"])])
        content["entries"] = data.draw(st.permutations(content["entries"]))
        (renamed / f"_dump_{names[rank]}").write_bytes(pickle.dumps(content))
    expected, answer = verdict(plain), verdict(renamed)
    assert answer["culprits"] == sorted(names[r] for r in expected["culprits"])
    assert answer["victims"] == sorted(names[r] for r in expected["victims"])
    assert answer["verdict"] == expected["verdict"]


def test_a_host_that_stopped_earlier_is_no_less_surely_named(tmp_path_factory):
    for rank in (0, 9):
        late, early = (
            verdict(write(run(Job(), host_stops={rank: stop}), tmp_path_factory.mktemp("dumps")))
            for stop in (50, 20)
        )
        assert early["culprits"] == late["culprits"] == [rank]
        assert early["confidence"] >= late["confidence"]


def test_without_a_table_of_groups_members_are_those_who_used_them(tmp_path):
    write(run(Job(), host_stops={9: 20}), tmp_path, complete=True)
    for path in tmp_path.iterdir():
        content = pickle.loads(path.read_bytes())
        path.write_bytes(pickle.dumps({**content, "pg_config": {}}))
    assert verdict(tmp_path)["culprits"] == [9]


@pytest.mark.parametrize("late", range(4))
def test_dumps_of_gloo_name_who_did_not_join(late, tmp_path):
    contents = {r: gloo_dump(6 - (r == late), pending=r != late) for r in range(4)}
    answer = verdict(written(tmp_path, contents))
    assert (answer["verdict"], answer["culprits"]) == ("rank", [late])
    (tmp_path / f"_dump_{late}").unlink()
    if late < 3:  # the number of ranks is known from the highest alone
        assert verdict(tmp_path)["culprits"] == [late]


def test_where_gloo_recorded_no_transfers_the_order_of_waiting_ranks_is_not_guessed(tmp_path):
    contents = {r: gloo_dump(6 if r == 0 else 5, pending=r == 0, op_id=3) for r in range(4)}
    answer = verdict(written(tmp_path, contents))
    assert (answer["verdict"], answer["culprits"]) == ("uncertain", [])
    assert "not recorded" in answer["reason"]


def test_a_finished_gloo_job_has_no_culprit(tmp_path):
    contents = {r: gloo_dump(6, pending=False) for r in range(4)}
    assert verdict(written(tmp_path, contents))["verdict"] == "none"


def test_a_rank_that_begins_two_groups_of_all_in_another_order_is_the_desync(tmp_path):
    groups = {name: {"name": name, "desc": name, "ranks": "[0, 1, 2, 3]"} for name in ("a", "b")}
    for rank in range(4):
        order = ("b", "a") if rank == 1 else ("a", "b")
        entries = [
            gloo_dump(5, group=(name, name))["entries"][-1] | {"record_id": place}
            for place, name in enumerate(order)
        ]
        content = {"pg_config": groups, "pg_status": {}, "entries": entries, "rank": rank}
        (tmp_path / f"_dump_{rank}").write_bytes(pickle.dumps(content))
    answer = verdict(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("desync", [1])


def test_the_payload_of_a_root_is_no_desync(tmp_path):
    contents = {r: gloo_dump(5 - (r == 2), pending=r != 2) for r in range(4)}
    for rank, content in contents.items():
        content["entries"][-1]["profiling_name"] = "nccl:scatter"
        content["entries"][-1]["input_sizes"] = [[4]] * 4 if rank == 0 else []
    answer = verdict(written(tmp_path, contents))
    assert (answer["verdict"], answer["culprits"]) == ("rank", [2])


def test_collectives_of_a_pair_are_not_taken_for_its_transfers(tmp_path):
    contents = {r: gloo_dump(5, pending=False) for r in range(2)}
    for content in contents.values():
        content["pg_config"] = {"0": {"desc": "default_pg", "ranks": "[0, 1]"}}
    send = {
        **contents[0]["entries"][-1],
        "profiling_name": "nccl:send 0->1",
        "is_p2p": True,
        "retired": False,
    }
    contents[0]["entries"].append({**send, "p2p_seq_id": 1, "record_id": 9})
    answer = verdict(written(tmp_path, contents))
    assert (answer["verdict"], answer["culprits"]) == ("rank", [1])
