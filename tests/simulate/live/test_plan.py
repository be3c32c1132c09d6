"""A plan says what goes wrong, where and when. A wrong one is refused in one clear line."""

from __future__ import annotations

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.simulate.live.fleet import LiveFleet
from pulsetrain.simulate.live.plan import KINDS, default_plan, list_faults, parse_plan, read_plan
from tests.simulate.live.fleets import FLEET, faults

EXIT = {"kind": "exit", "at_s": 5, "rank": 9, "code": -9}


def test_a_fault_belongs_to_a_piece_of_hardware():
    [fault] = faults(EXIT)
    assert (fault.node, fault.local_rank, fault.number("code")) == ("sim-00002", 1, -9)


def test_faults_come_in_the_order_of_time():
    assert [f.at_s for f in faults({**EXIT, "at_s": 9}, {**EXIT, "at_s": 2})] == [2, 9]


def test_a_fault_is_there_from_its_beginning_to_its_end():
    [fault] = faults({"kind": "slow_node", "at_s": 5, "for_s": 2, "node": "sim-00001", "factor": 1.5})
    assert [fault.active(at_s) for at_s in (4.9, 5.0, 6.9, 7.0)] == [False, True, True, False]


def test_what_is_found_names_the_rank_the_node_or_the_link():
    rank, node, link = faults(
        EXIT,
        {"kind": "silent_node", "at_s": 6, "node": "sim-00001"},
        {"kind": "flapping_link", "at_s": 7, "node": "sim-00003", "port": 2},
    )
    assert (rank.subject_type, rank.subject) == ("rank", "9")
    assert (node.subject_type, node.subject) == ("node", "sim-00001")
    assert (link.subject_type, link.subject) == ("link", "sim-00003/mlx5_2/1")


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"kind": "fire", "at_s": 1}, "fault 1: kind = 'fire': allowed: slow_rank, slow_node"),
        ({**EXIT, "rank": 16}, "fault 1 (exit): rank = 16: allowed 0 to 15"),
        ({**EXIT, "rank": True}, "rank = True: allowed 0 to 15"),
        ({**EXIT, "code": "x"}, "code = 'x': allowed -64 to 255"),
        ({**EXIT, "at_s": -1}, "at_s = -1: allowed 0 or more"),
        ({**EXIT, "colour": 1}, "unknown key 'colour'; allowed: kind, rank, at_s, for_s, code, fails_check"),
        ({"kind": "exit", "at_s": 5, "rank": 1}, "code is missing"),
        ({"kind": "slow_rank", "at_s": 5, "rank": 1, "factor": 0.5}, "factor = 0.5: allowed 1 to 100"),
        ({"kind": "hung_rank", "at_s": 5, "rank": 1, "stopped": 1}, "stopped = 1: allowed true or false"),
        ({"kind": "silent_node", "at_s": 5, "node": "n1"}, "node = 'n1': allowed 'sim-00000' to 'sim-00005'"),
    ],
)
def test_a_wrong_fault_is_named_with_what_is_allowed(table, says):
    with pytest.raises(UsageError) as caught:
        faults(table)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [("[[faults]]\n", "unknown table 'faults'"), ("fault = 3\n", "no list"), ("[[fault]\n", "--plan")],
)
def test_a_file_that_is_no_plan_is_refused(tmp_path, text, says):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_plan(path, FLEET)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_plan_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        read_plan(tmp_path / "none.toml", FLEET)


def test_a_file_holds_what_the_tables_say(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text('[[fault]]\nkind = "exit"\nat_s = 5\nrank = 9\ncode = -9\n')
    assert [vars(f) for f in read_plan(path, FLEET)] == [vars(f) for f in faults(EXIT)]


@pytest.mark.parametrize("nodes", [1, 2, 16, 1536])
def test_the_default_plan_has_every_kind_within_the_run(nodes):
    fleet = LiveFleet(nodes=nodes)
    plan = default_plan(fleet, 600)
    assert {f.kind for f in plan} == KINDS.keys()
    assert all(0 < f.at_s < 600 for f in plan)
    if nodes >= 16:
        assert len({f.node for f in plan}) == len(plan)


def test_every_kind_is_listed_with_its_keys():
    rows = {row.kind: row for row in list_faults()}
    assert rows.keys() == KINDS.keys()
    assert rows["exit"].keys == "at_s [for_s] rank code [fails_check]"


def test_an_empty_plan_is_a_healthy_fleet():
    assert parse_plan({}, FLEET) == ()
