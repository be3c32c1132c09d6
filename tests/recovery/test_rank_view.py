"""One rank as the hub's API shows it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.core.errors import UsageError
from pulsetrain.protocol.messages import GroupStatus, decode, encode
from pulsetrain.recovery.rank_view import rank_row, runs
from tests.recovery.builders import S, heartbeat, status
from tests.recovery.fakes import Fleet, run

WAITS = GroupStatus(
    group="dp",
    members=(1, 3),
    enqueued=8,
    completed=7,
    op="all_reduce",
    op_seq=8,
    op_age_ns=2 * S,
    timeout_s=600,
)
IDLE = GroupStatus(group="tp", members=(0, 1), enqueued=9, completed=9)


def test_a_rank_has_its_groups_and_what_is_in_flight_since_when():
    beat = heartbeat("a", status(0), status(1, state="stopped", groups=(WAITS, IDLE)))
    row = rank_row("j", 0, 1, "a", beat, heard_ns=1000 * S)
    assert (row["node"], row["state"], row["last_step"], row["heard_ns"]) == ("a", "stopped", 5, 1000 * S)
    busy, idle = row["groups"]
    assert (busy["op"], busy["op_seq"], busy["op_since_ns"]) == ("all_reduce", 8, 998 * S)
    assert (busy["size"], busy["runs"]) == (2, [(1, 2, 2)])
    assert (idle["op"], idle["op_seq"], idle["op_since_ns"], idle["peer"]) == ("", -1, 0, -1)
    assert json.loads(json.dumps(row))["groups"][0]["runs"] == [[1, 2, 2]]


def test_a_heartbeat_from_the_wire_says_the_same():
    world = GroupStatus(group="world", members=tuple(range(0, 4096, 2)), enqueued=1, completed=1)
    beat = heartbeat("a", status(0, groups=(IDLE,)), status(1, groups=(WAITS, world)))
    received = decode(encode(beat))
    row = rank_row("j", 0, 1, "a", received, heard_ns=1000 * S)
    assert row == rank_row("j", 0, 1, "a", beat, heard_ns=1000 * S)
    assert row["groups"][1]["runs"] == [(0, 2, 2048)]


@pytest.mark.parametrize("beat", [None, heartbeat("a", status(0))])
def test_a_rank_of_which_nothing_was_heard_says_so(beat):
    row = rank_row("j", 3, 1, "a", beat, heard_ns=1000 * S)
    assert (row["heard_ns"], row["state"], row["last_step"], row["groups"]) == (0, "", -1, [])


def test_the_hub_finds_a_rank_by_the_last_heartbeat_of_its_node():
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        fleet.agents["b"].send_heartbeat()
        fleet.clock.now_s += 3
        row = fleet.controller.rank("j", 3)
        assert (row["node"], row["attempt"]) == ("b", fleet.job.attempt)
        assert row["heard_ns"] == (fleet.clock.now_s - 3) * 1e9
        with pytest.raises(UsageError, match="rank = 4: allowed: 0 to 3"):
            fleet.controller.rank("j", 4)
        with pytest.raises(UsageError, match="no job 'q'"):
            fleet.controller.rank("q", 0)

    run(scenario)


def members(found):
    return [first + distance * i for first, distance, number in found for i in range(number)]


@given(st.sets(st.integers(0, 300), max_size=60))
def test_runs_hold_every_member_once_in_order(ranks):
    assert members(runs(sorted(ranks), most=100)) == sorted(ranks)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (range(100_000), [(0, 1, 100_000)]),
        (range(3, 99_999, 8), [(3, 8, 12_500)]),
        ([0, 1, 2_000_000_000], [(0, 1, 2), (2_000_000_000, 1, 1)]),
        ([7, 7], [(7, 1, 1), (7, 1, 1)]),
        ([], []),
    ],
)
def test_an_evenly_spaced_group_of_any_size_is_one_run(ranks, expected):
    assert runs(ranks) == expected


def test_a_group_without_order_is_cut_off():
    assert len(runs([i * i for i in range(500)])) == 64
