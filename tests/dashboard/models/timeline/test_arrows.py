"""Which receive took what a send gave."""

from __future__ import annotations

import random

import pytest

from pulsetrain.dashboard.models.timeline.arrows import arrows_of
from tests.dashboard.models.timeline.rows import collective, row, spans, transfer


def pairs(*rows):
    """(sender, receiver, seq) of each arrow."""
    found = spans(*rows)
    arrows = arrows_of(found)
    return [
        (int(found["rank"][a]), int(found["rank"][b]), int(found["seq"][a]))
        for a, b in zip(arrows.send, arrows.recv, strict=True)
    ]


def test_a_send_points_at_the_receive_of_its_peer_with_the_same_number():
    rows = [
        transfer("send", 0, 1, seq=4),
        transfer("send", 0, 1, start=20, seq=5),
        transfer("recv", 1, 0, seq=5),
    ]
    assert pairs(*rows) == [(0, 1, 5)]
    assert arrows_of(spans(*rows)).lonely == 1


def test_both_directions_have_their_own_numbers():
    rows = [transfer(phase, rank, 1 - rank, seq=1) for phase in ("send", "recv") for rank in (0, 1)]
    assert pairs(*rows) == [(0, 1, 1), (1, 0, 1)]


@pytest.mark.parametrize(
    "other", [{"group": "pp2"}, {"attempt": 2}, {"seq": 2}, {"peer": 3}, {"rank": 2}, {"phase": "send"}]
)
def test_what_differs_in_anything_is_no_pair(other):
    received = {**transfer("recv", 1, 0, seq=1), **other}
    assert pairs(transfer("send", 0, 1, seq=1), received) == []


def test_spans_that_lack_peer_or_number_have_no_partner():
    rows = [
        transfer("send", 0, -1),
        transfer("recv", 1, -1),
        transfer("send", 0, 1, seq=-1),
        row(),
        collective(),
    ]
    assert pairs(*rows) == []
    assert arrows_of(spans(*rows)).lonely == 0


def test_a_number_that_occurs_twice_counts_once():
    rows = [transfer("send", 0, 1), transfer("recv", 1, 0), transfer("recv", 1, 0, start=50)]
    found = arrows_of(spans(*rows))
    assert len(found.send) == 1
    assert spans(*rows)["start_ns"][found.recv[0]] == 0


def test_the_order_of_rows_changes_nothing():
    rows = [
        transfer(phase, a, b, seq=k) for k in range(5) for phase, a, b in (("send", 0, 1), ("recv", 1, 0))
    ]
    assert pairs(*random.Random(3).sample(rows, len(rows))) == pairs(*rows)
