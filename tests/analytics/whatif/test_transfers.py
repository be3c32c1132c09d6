"""Transfers between stages: their compute operation, and the other side."""

from __future__ import annotations

import pytest

from pulsetrain.analytics.whatif.operations import Dependencies, Op
from pulsetrain.analytics.whatif.transfers import add_transfers
from pulsetrain.core.errors import UsageError


def op(index, kind, stage, *, start, seq=0, length=1.0):
    return Op(
        index=index, kind=kind, seq=seq, stage=stage, start=start, end=start + length, chunk=0, model_chunk=-1
    )


def two_stages():
    """Stage 0 computes and sends, stage 1 receives and computes."""
    return [
        op(0, "forward-compute", 0, start=0.0),
        op(1, "forward-send", 0, start=1.0, length=1.5),
        op(2, "forward-recv", 1, start=0.0, length=2.5),
        op(3, "forward-compute", 1, start=2.5),
    ]


def added(ops):
    graph = Dependencies(ops)
    add_transfers(graph)
    return graph


def test_a_send_waits_for_its_compute_and_compute_for_its_receive():
    graph = added(two_stages())
    assert graph.after[1] == [0]
    assert graph.after[3] == [2]


def test_a_send_and_its_receive_communicate_together():
    assert (1, 2) in added(two_stages()).groups


def test_a_receive_waits_for_the_compute_operation_before_its_own():
    later = [
        op(4, "forward-compute", 0, start=1.0, seq=1),
        op(5, "forward-send", 0, start=2.0, seq=1, length=2.0),
        op(6, "forward-recv", 1, start=2.5, seq=1, length=1.0),
        op(7, "forward-compute", 1, start=3.5, seq=1),
    ]
    graph = added([*two_stages(), *later])
    assert graph.after[6] == [3]


def test_without_recorded_receives_compute_waits_for_the_send():
    graph = added([o for o in two_stages() if o.kind != "forward-recv"])
    assert graph.after[3] == [1]


def test_without_recorded_transfers_compute_waits_for_the_compute_that_feeds_it():
    graph = added([o for o in two_stages() if o.kind == "forward-compute"])
    assert graph.after[3] == [0]


def test_a_send_of_the_last_stage_has_no_other_side():
    graph = added([*two_stages(), op(4, "forward-send", 1, start=3.5)])
    assert (4,) in graph.groups


def test_a_receive_after_the_last_compute_was_never_launched():
    graph = added([*two_stages(), op(4, "forward-recv", 1, start=9.0, seq=1)])
    assert graph.after[4] == []


def test_too_few_transfers_are_refused_with_the_numbers():
    computes = [op(10 + i, "forward-compute", 0, start=float(i), seq=i) for i in range(3)]
    with pytest.raises(UsageError, match="stage 0: 1 forward-send for 3 forward-compute"):
        added([*computes, op(20, "forward-send", 0, start=3.0)])
