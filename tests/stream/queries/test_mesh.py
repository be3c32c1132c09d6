"""The topology's queries over a real store: blocks of the mesh, and the ranks of a part of it."""

from __future__ import annotations

import pytest

from pulsetrain.stream.queries.mesh import mesh_blocks, mesh_peers, mesh_ranks
from pulsetrain.stream.store.clickhouse import open_store
from tests.dashboard.recorded_job import S, table

NOW = 1_790_000_000 * S
HEARD = {"since_ns": NOW - 60 * S, "fresh_ns": NOW - 5 * S}
RANKS = 64
STATES = {5: ("stopped", 1), 6: ("zombie", 1), 7: ("running", 30)}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """TP2 x PP2 x DP16. Rank 5 is stopped, 6 is gone, 7 has been silent for half a minute."""
    opened = open_store(f"chdb://{tmp_path_factory.mktemp('mesh') / 'store'}")
    opened.migrate()
    places = [
        {"job": "j", "attempt": 1, "rank": rank, "node": f"node-{rank // 8}", "switch": f"tor-{rank // 32}",
         "tp": rank % 2, "pp": rank // 32, "dp": rank % 32 // 2, "ts": NOW - 100 * S}
        for rank in range(RANKS)
    ]  # fmt: skip
    beats = []
    for rank in range(RANKS):
        state, age_s = STATES.get(rank, ("running", 1))
        place = {"node": f"node-{rank // 8}", "job": "j", "attempt": 1, "rank": rank}
        beats.append({**place, "ts": NOW - age_s * S, "state": state, "last_step": 9})
    opened.insert("topology", table("topology", places))
    opened.insert("heartbeats", table("heartbeats", beats))
    yield opened
    opened.close()


def test_blocks_count_who_is_not_well(store):
    rows = mesh_blocks(store, "j", columns=4, **HEARD).to_pylist()
    assert len(rows) == 2 * 4
    assert sum(row["ranks"] for row in rows) == RANKS
    (first, *others) = rows
    assert (first["first_dp"], first["last_dp"]) == (0, 3)
    assert (first["stopped"], first["gone"], first["no_data"]) == (1, 1, 1)
    assert all(row["stopped"] + row["gone"] + row["no_data"] == 0 for row in others)


def test_ranks_that_need_a_look_come_first(store):
    rows = mesh_ranks(store, "j", named=(40,), limit=4, **HEARD).to_pylist()
    assert [row["rank"] for row in rows] == [40, 5, 6, 0]
    assert {row["ranks_in_all"] for row in rows} == {RANKS}
    assert mesh_ranks(store, "j", nodes=("node-7",), limit=1, **HEARD).to_pylist()[0]["rank"] == 56


def test_a_silent_rank_shows_its_last_heartbeat_and_no_other_rank_comes_twice(store):
    rows = {row["rank"]: row for row in mesh_ranks(store, "j", **HEARD).to_pylist()}
    assert (rows[7]["state"], rows[7]["ts_ns"], rows[7]["last_step"]) == ("no_data", NOW - 30 * S, 9)
    assert len(rows) == rows[0]["ranks_in_all"] == RANKS


@pytest.mark.parametrize(
    ("part", "count"),
    [
        ({"stage": 1}, 32),
        ({"stage": 1, "dps": (0, 3)}, 8),
        ({"find": "node-3"}, 8),
        ({"find": "tor-1"}, 32),
        ({"find": "7"}, 1),
        ({"find": "nosuch"}, 0),
    ],
)
def test_a_part_of_the_mesh(store, part, count):
    assert mesh_ranks(store, "j", **part, **HEARD).num_rows == count


def test_silence_and_an_older_attempt_are_no_data(store):
    states = {row["rank"]: row["state"] for row in mesh_ranks(store, "j", **HEARD).to_pylist()}
    assert {states[5], states[6], states[7], states[8]} == {"stopped", "gone", "no_data", "running"}


@pytest.fixture(scope="module")
def axes(store):
    """Job a: TP2 x CP2 x DP4, in which ep follows from dp. Job b: TP2 x EP4. Job w: dp alone, 200 ranks."""
    common = {"attempt": 2, "pp": 0, "ts": NOW}
    rows = [
        {**common, "job": "a", "rank": r, "node": f"n{r // 8}", "tp": r % 2, "cp": r // 2 % 2, "dp": r // 4,
         "ep": r // 4 % 2}
        for r in range(16)
    ]  # fmt: skip
    rows += [{**r, "attempt": 1, "dp": 9 - r["dp"]} for r in rows]
    rows += [{**common, "job": "b", "rank": r, "tp": r % 2, "dp": 0, "cp": 0, "ep": r // 2} for r in range(8)]
    rows += [{**common, "job": "w", "rank": r, "tp": 0, "dp": r, "cp": 0, "ep": 0} for r in range(200)]
    store.insert("topology", table("topology", rows))
    return store


def peers(store, job, rank, at, **options):
    found = {}
    for row in mesh_peers(store, job, rank=rank, at=at, **options).to_pylist():
        found.setdefault(row["axis"], []).append(row["rank"])
    return found


def test_peers_differ_in_one_coordinate_of_the_newest_attempt(axes):
    # rank 5: tp 1, cp 0, dp 1, ep 1
    assert peers(axes, "a", 5, (1, 0, 1, 0, 1)) == {"tp": [4], "cp": [7], "dp": [1, 9, 13]}


def test_expert_parallel_ranks_are_peers_where_they_differ_in_that_alone(axes):
    assert peers(axes, "b", 3, (1, 0, 0, 0, 1)) == {"tp": [2], "ep": [1, 5, 7]}


def test_of_many_peers_the_nearest_are_told_and_all_are_counted(axes):
    rows = mesh_peers(axes, "w", rank=50, at=(0, 0, 50, 0, 0), limit=4).to_pylist()
    assert [row["rank"] for row in rows] == [49, 51, 48, 52]
    assert {row["peers_in_all"] for row in rows} == {199}
