"""Sends and collectives as flows of a trace."""

from __future__ import annotations

import random

import pytest

from pulsetrain.analytics.trace_flows import flow_events, flows


def row(phase, rank, start, length=10, **values):
    return {
        "attempt": 1, "rank": rank, "phase": phase, "category": "communication", "lane": "host",
        "group": "dp", "seq": 3, "peer": -1, "start_ns": start, "duration_ns": length, **values,
    }  # fmt: skip


SEND = row("send", 0, 20, peer=1, group="pp")
RECV = row("recv", 1, 5, 40, peer=0, group="pp")
MEMBERS = (row("all_reduce", 2, 30), row("all_reduce", 0, 10), row("all_reduce", 1, 20))


def paths(*rows):
    """Name, ranks and moments of each flow."""
    return [(f.name, [r["rank"] for r in f.rows], list(f.at_ns)) for f in flows(rows)]


def test_a_send_leads_to_the_end_of_its_receive():
    assert paths(SEND, RECV) == [("send", [0, 1], [20, 44])]


def test_a_collective_leads_through_its_members_as_they_arrive():
    assert paths(*MEMBERS) == [("all_reduce", [0, 1, 2], [10, 20, 30])]


@pytest.mark.parametrize("other", [{"seq": 4}, {"group": "x"}, {"attempt": 2}, {"peer": 2}, {"rank": 2}])
def test_what_differs_in_anything_does_not_belong_together(other):
    assert paths(SEND, {**RECV, **other}) == []


@pytest.mark.parametrize(
    "other", [{"seq": 4}, {"group": "x"}, {"attempt": 2}, {"phase": "barrier"}, {"rank": 0}]
)
def test_a_collective_of_one_member_is_no_flow(other):
    assert paths(MEMBERS[1], {**MEMBERS[2], **other}) == []


@pytest.mark.parametrize("lacking", [{"seq": -1}, {"group": ""}, {"category": "compute"}])
def test_spans_without_a_number_or_a_group_have_no_flow(lacking):
    assert paths(*({**member, **lacking} for member in MEMBERS)) == []


def test_the_order_of_rows_changes_nothing():
    rows = [SEND, RECV, *MEMBERS]
    assert paths(*random.Random(2).sample(rows, 5)) == paths(*rows)


def test_events_begin_pass_and_end_in_their_spans():
    events = list(flow_events(flows([SEND, RECV, *MEMBERS]), 5, lambda row: 7 + row["rank"]))
    reduce = [e for e in events if e["name"] == "all_reduce"]
    assert [(e["ph"], e["pid"], e["tid"], e["ts"]) for e in reduce] == [
        ("s", 0, 7, 0.005), ("t", 1, 8, 0.015), ("f", 2, 9, 0.025),
    ]  # fmt: skip
    assert [e.get("bp") for e in reduce] == [None, None, "e"]
    assert len({e["id"] for e in events}) == 2


def test_a_flow_that_goes_back_in_time_is_left_out():
    early = {**RECV, "duration_ns": 3}
    (flow,) = flows([SEND, early])
    assert not flow.goes_forward
    assert list(flow_events([flow], 0, lambda row: 0)) == []
