"""What one Flight Recorder dump says: groups, operations and counters."""

from __future__ import annotations

import pytest

from pulsetrain.analytics.hangs.flight_dumps import group_keys, members_of, parse

CONFIG = {"0": {"desc": "default_pg", "ranks": "[0, 1, 2, 3]"}, "7": {"desc": "pp", "ranks": "[3, 1]"}}


def entry(name="nccl:all_reduce", group=("0", "default_pg"), **fields):
    return {
        "record_id": 1,
        "pg_id": int(group[0]),
        "process_group": group,
        "collective_seq_id": 5,
        "p2p_seq_id": 0,
        "profiling_name": name,
        "is_p2p": name.split(":")[-1].startswith(("send", "recv")),
        "state": "scheduled",
        "input_sizes": [[4]],
        "output_sizes": [[8]],
        "input_dtypes": ["Float"],
        **fields,
    }


def parsed(*entries, rank=1, **fields):
    return parse(rank, {"pg_config": CONFIG, "entries": list(entries), **fields}, {})


def test_a_collective_has_no_peer_and_its_payload_as_text():
    (operation,) = parsed(entry()).operations
    assert (operation.op, operation.seq, operation.peer) == ("all_reduce", 5, -1)
    assert operation.size == "[[4]] ['Float']"


def test_a_broadcast_is_compared_by_its_output():
    (operation,) = parsed(entry("nccl:broadcast")).operations
    assert operation.size.startswith("[[8]]")


@pytest.mark.parametrize(("rank", "name", "peer"), [(3, "nccl:send 0->1", 1), (1, "nccl:recv 1<-0", 3)])
def test_sides_of_a_transfer_are_places_in_the_groups_own_order(rank, name, peer):
    (operation,) = parsed(entry(name, group=("7", "pp")), rank=rank).operations
    assert operation.peer == peer


def test_a_transfer_beyond_its_group_is_an_error():
    with pytest.raises(IndexError, match="in a group of 2"):
        parsed(entry("nccl:send 0->5", group=("7", "pp")))


@pytest.mark.parametrize(
    ("fields", "pending"),
    [
        ({}, True),
        ({"state": "completed"}, False),
        ({"time_discovered_completed_ns": 7}, False),
        ({"retired": True}, False),
        ({"state": "started"}, True),
    ],
)
def test_an_operation_is_pending_until_something_says_that_it_completed(fields, pending):
    assert parsed(entry(**fields)).operations[0].pending is pending


def test_an_operation_is_started_by_its_state_or_by_its_time():
    assert parsed(entry(state="started")).operations[0].started
    assert parsed(entry(time_discovered_started_ns=3)).operations[0].started
    assert not parsed(entry()).operations[0].started


def test_parts_of_coalesced_transfers_take_the_state_of_the_whole():
    part = entry("nccl:send 0->1", group=("7", "pp"), p2p_seq_id=2)
    whole = {**part, "profiling_name": "nccl:coalesced", "state": "completed"}
    (operation,) = parsed(part, whole, rank=3).operations
    assert (operation.op, operation.pending) == ("send", False)


def test_groups_with_equal_description_and_members_are_numbered_by_name():
    config = {n: {"desc": "dp", "ranks": [0, 1]} for n in ("10", "9", "11")}
    keys = group_keys({"pg_config": config})
    assert {name: key[0] for name, key in keys.items()} == {"9": "dp", "10": "dp#2", "11": "dp#3"}


def test_members_are_text_in_some_versions_and_a_list_in_others():
    assert members_of({"ranks": "[3, 1]"}) == members_of({"ranks": [3, 1]}) == (3, 1)
    assert members_of({}) == ()


def test_a_group_that_the_configuration_lacks_has_the_members_that_others_know():
    dump = parse(2, {"entries": [entry(group=("4", "ep"))]}, {("4", "ep"): (2, 6)})
    assert dump.operations[0].group == ("ep", (2, 6))
    assert dump.inferred == {("ep", (2, 6))}
    assert parse(2, {"entries": [entry(group=("4", "ep"))]}, {}).groups == (("ep", (2,)),)


def test_counters_are_joined_to_groups_by_the_entries():
    status = {"3": {"last_enqueued_collective": 9, "last_completed_collective": 8}}
    dump = parsed(entry(pg_id=3), pg_status=status)
    assert dump.status == {("default_pg", (0, 1, 2, 3)): (9, 8)}


def test_counters_are_joined_in_order_where_each_group_has_them():
    status = {str(i): {"last_enqueued_collective": i, "last_completed_collective": 0} for i in (1, 2)}
    dump = parsed(pg_status=status)
    assert dump.status == {("default_pg", (0, 1, 2, 3)): (1, 0), ("pp", (1, 3)): (2, 0)}


@pytest.mark.parametrize("field", ["record_id", "collective_seq_id", "p2p_seq_id", "time_created_ns"])
@pytest.mark.parametrize("value", ["x", [1], float("nan"), float("inf")])
def test_a_number_that_is_none_is_an_error(field, value):
    with pytest.raises((TypeError, ValueError, OverflowError)):
        parsed(entry(**{field: value}))


@pytest.mark.parametrize("field", ["last_enqueued_collective", "last_completed_collective"])
@pytest.mark.parametrize("value", ["x", None, float("nan")])
def test_a_counter_that_is_none_is_an_error(field, value):
    counters = {"last_enqueued_collective": 9, "last_completed_collective": 8, field: value}
    with pytest.raises((TypeError, ValueError)):
        parsed(entry(pg_id=3), pg_status={"3": counters})


def test_gloo_counts_transfers_that_it_does_not_record():
    counted = entry("gloo:all_reduce", op_id=8)
    assert parsed(counted).uncounted_transfers == {("default_pg", (0, 1, 2, 3))}
    assert not parsed(entry("gloo:all_reduce", op_id=5)).uncounted_transfers


def test_a_dump_without_entries_has_its_groups():
    assert len(parse(0, {"pg_config": CONFIG}, {}).groups) == 2
