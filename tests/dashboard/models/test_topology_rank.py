"""The chosen rank: who its peers are, which way data goes, what it has in flight, and what is not known."""

from __future__ import annotations

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.dashboard.models import topology_rank as model
from pulsetrain.dashboard.models.attribution import attribute
from pulsetrain.dashboard.models.topology import points

S = 10**9
NOW = 1_000_000 * S
TP, PP, DP = 2, 4, 3


def place(rank):
    tp, dp, pp = rank % TP, rank // TP % DP, rank // (TP * DP)
    return {"tp": tp, "pp": pp, "dp": dp, "cp": 0, "ep": 0}


def topology_row(rank, **values):
    return {
        "attempt": 1, "rank": rank, "local_rank": 0, "node": f"n{rank // 8}", "ip": "", "switch": "",
        **place(rank), **values,
    }  # fmt: skip


def me(rank, **values):
    (point,) = points([topology_row(rank, **values)], [], attribute([]), now_ns=NOW)
    return point


def near(rank):
    """What `mesh_peers` answers for a rank of TP2 x PP4 x DP3."""
    own, rows = place(rank), []
    for other in range(TP * PP * DP):
        differs = [axis for axis in ("tp", "pp", "dp") if place(other)[axis] != own[axis]]
        if len(differs) == 1:
            rows.append({"axis": differs[0], "rank": other, "node": f"n{other // 8}", **place(other)})
    return [row | {"peers_in_all": sum(r["axis"] == row["axis"] for r in rows)} for row in rows]


def group(name="mesh_dp:3", members=(1, 3, 5), **values):
    first, distance = members[0], members[1] - members[0]
    return {
        "group": name, "size": len(members), "runs": [[first, distance, len(members)]], "enqueued": 9,
        "completed": 9, "op": "", "op_seq": -1, "op_bytes": 0, "op_since_ns": 0, "peer": -1, "timeout_s": 0,
        **values,
    }  # fmt: skip


def live(*groups, heard_ns=NOW - S):
    return {"node": "n0", "heard_ns": heard_ns, "groups": list(groups)}


BUSY = {"op": "all_reduce", "op_seq": 10, "op_bytes": 1 << 20, "op_since_ns": NOW - 7 * S, "enqueued": 10}


def span(**values):
    return {
        "phase": "all_reduce", "category": "communication", "group": "mesh_dp:3", "seq": 4, "bytes": 0,
        "peer": -1, "open": False, "start_ns": NOW - 9 * S, "duration_ns": 8 * S, **values,
    }  # fmt: skip


def lines(rank, spans=(), row=None):
    rows = near(rank) if row is None else row
    peers = model.mesh_peers(me(rank), rows)
    peers += model.seen_transfers(spans, peers, {})
    return {line.relation: line for line in model.peer_lines(me(rank), rows, peers)}


def test_a_stage_in_the_middle_has_both_neighbours_with_the_way_of_the_data():
    found = lines(9)  # tp 1, dp 1, stage 1
    assert (found["previous stage"].ranks, found["next stage"].ranks) == ((3,), (15,))
    assert found["previous stage"].data == "activations from it, gradients to it"
    assert found["next stage"].data == "activations to it, gradients from it"
    assert (found["tensor parallel"].ranks, found["data parallel"].ranks) == ((8,), (7, 11))


def test_the_ends_of_the_pipeline_are_said():
    assert (lines(0)["previous stage"].ranks, lines(0)["previous stage"].data) == ((), "it is the first")
    assert (lines(23)["next stage"].ranks, lines(23)["next stage"].data) == ((), "it is the last")


def test_a_stage_whose_neighbour_told_no_place_is_not_called_the_last():
    rows = [row for row in near(9) if row["rank"] not in (3, 15)]
    found = lines(9, row=rows)
    assert (found["previous stage"].data, found["next stage"].data) == ("not known", "not known")


def test_without_stages_there_is_no_pipeline():
    assert set(lines(0, row=[r for r in near(0) if r["axis"] == "dp"])) == {"data parallel"}


def test_more_peers_than_were_asked_for_are_counted():
    rows = [row | {"peers_in_all": 999} for row in near(9)]
    assert lines(9, row=rows)["data parallel"].in_all == 999


def test_transfers_are_peers_only_where_they_were_seen():
    spans = [span(phase="send", peer=15), span(phase="recv", peer=3), span(phase="send", peer=23), span()]
    found = lines(9, spans)
    assert found["received from (seen)"].ranks == (3,)
    assert found["sent to (seen)"].ranks == (15, 23)
    known = model.mesh_peers(me(9), near(9))
    at = {p.rank: p.place for p in model.seen_transfers(spans, known, {})}
    assert at == {3: (1, 0, 1), 15: (1, 2, 1), 23: None}


def test_a_transfer_in_flight_was_seen_too():
    (peer,) = model.seen_transfers([], [], live(group(**{**BUSY, "op": "recv", "peer": 3})))
    assert (peer.rank, peer.flow, peer.link) == (3, "in", "transfer")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mesh_tp:3", "tp: tensor parallel"),
        ("TENSOR_MODEL_PARALLEL_GROUP:5", "tp: tensor parallel"),
        ("pp-12", "pp: pipeline"),
        ("expert:4", "ep: expert parallel"),
        ("world", "all ranks"),
        ("17", "dp: data parallel"),  # by its members
        ("MODEL_PARALLEL_GROUP:5", "dp: data parallel"),
    ],
)
def test_what_a_group_is_for_is_known_by_its_name_or_its_members(name, kind):
    (line,) = model.group_lines(live(group(name, (7, 9, 11))), 9, near(9))
    assert (line.kind, line.size, line.members) == (kind, "3", "7, 9, 11")
    assert line.newest == "9 begun, 9 complete"


def test_a_group_that_fits_no_axis_is_not_known():
    (line,) = model.group_lines(live(group("17", (0, 9), enqueued=0)), 9, near(9))
    assert (line.kind, line.newest) == ("not known", "no collective yet")


def test_members_of_a_large_group_are_never_spelled_out(monkeypatch):
    monkeypatch.setattr(model, "_members", lambda runs: pytest.fail("100,000 members for one row"))
    large = group("3", (0, 1), size=100_000, runs=[[0, 1, 100_000]])
    (line,) = model.group_lines(live(large), 9, near(9))
    assert (line.kind, line.members) == ("not known", "0-99999")


@pytest.mark.parametrize(
    ("runs", "count", "text"),
    [
        ([[0, 8, 12]], 12, "every 8th of 0-88"),
        ([[0, 1, 4], [9, 1, 1]], 5, "0-3, 9"),
        ([[0, 3, 11]], 11, "every 3rd of 0-30"),
        ([[0, 111, 20]], 20, "every 111th of 0-2109"),
        ([[0, 1, 4]], 10, "0-3, and 6 more"),
        ([], 0, "not known"),
    ],
)
def test_members_are_ranges(runs, count, text):
    assert model.members_text(runs, count) == text


def test_the_oldest_operation_comes_first_with_group_number_and_beginning():
    older = group("mesh_tp:1", (8, 9), **{**BUSY, "op_since_ns": NOW - 90 * S, "timeout_s": 600})
    found = model.in_flight(live(group(**BUSY), older), NOW)
    assert found.sentence == (
        "all_reduce in group mesh_tp:1, seq 10, 1.00 MiB, for 1 min 30 s, since 1970-01-12 13:45:10 UTC, "
        "torch ends it after 10 min 00 s. 2 operations are in flight."
    )
    assert [text.split(",")[0] for text in found.operations] == ["all_reduce in group mesh_dp:3"]


def test_a_send_names_its_peer():
    sends = group("pp", (3, 9), **{**BUSY, "op": "send", "peer": 15})
    assert model.in_flight(live(sends), NOW).sentence.startswith("send to rank 15 in group pp, seq 10")


def test_an_operation_of_a_silent_node_does_not_go_on():
    found = model.in_flight(live(group(**BUSY), heard_ns=NOW - 4 * S), NOW + 60 * S)
    assert "for 3.00 s" in found.sentence
    assert found.sentence.endswith("when n0 was heard last, 1 min 04 s ago.")


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (live(group()), "No operation is in flight."),
        (live(), "Not known: the rank has told of no process group."),
        (
            {"node": "n0", "heard_ns": 0, "groups": []},
            "Not known: no heartbeat of n0 has come in this attempt.",
        ),
    ],
)
def test_nothing_in_flight_and_not_known_are_different(row, sentence):
    assert model.in_flight(row, NOW) == model.InFlight(sentence=sentence)


def test_a_recording_says_what_had_not_ended():
    spans = [
        span(open=True),
        span(open=True, start_ns=NOW - 20 * S, seq=3),
        span(),
        span(open=True, category="compute"),
    ]
    found = model.stored_in_flight(spans)
    assert found.sentence.startswith(
        "Not ended when it was recorded last: all_reduce in group mesh_dp:3, seq 3,"
    )
    assert len(found.operations) == 1
    assert model.stored_in_flight([span()]).sentence == "Every operation on record had ended."
    assert model.stored_in_flight([]).sentence.startswith("Not known")


def test_groups_of_a_recording_follow_from_its_spans_and_the_mesh():
    spans = [
        span(seq=4),
        span(seq=7),
        span(group="odd", seq=2),
        span(group="pp-1", peer=3, phase="recv"),
        span(group=""),
    ]
    first, second, third = model.stored_group_lines(spans, 9, near(9))
    assert (first.name, first.members, first.newest) == ("mesh_dp:3", "7, 9, 11 by the mesh", "seq 7")
    assert (second.kind, second.size, second.members) == ("not known", "not known", "not known")
    assert (third.kind, third.newest) == ("pp: pipeline", "sends and receives")


def test_error_lines_of_rank_and_node_come_once_and_newest_first():
    own = [{"ts_ns": 5, "rank": 9, "source": "stderr", "message": "a"}]
    kernel = {"ts_ns": 8, "rank": -1, "source": "kmsg", "message": "Xid 79"}
    assert model.last_lines(own, [kernel, *own]) == [kernel, *own]
    assert len(model.last_lines([{**kernel, "ts_ns": i} for i in range(20)], [])) == 8


def test_an_address_that_names_no_rank_is_refused_in_one_line():
    assert (model.rank_in(""), model.rank_in(" 7 ")) == (None, 7)
    for text in ("-1", "x", "1-3", "1234567890", "²"):
        with pytest.raises(UsageError, match="allowed: the number of a rank"):
            model.rank_in(text)
