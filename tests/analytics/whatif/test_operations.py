"""Operations of a step, and what each of them waits for."""

from __future__ import annotations

from pulsetrain.analytics.whatif.operations import FORWARD, GC, Dependencies, Op


def op(index, kind=FORWARD, *, seq=0, stage=0, start=0.0, chunk=0):
    return Op(
        index=index, kind=kind, seq=seq, stage=stage, start=start, end=start + 1, chunk=chunk, model_chunk=-1
    )


def test_operations_of_a_stage_are_in_the_order_in_which_they_started():
    late, early, elsewhere = op(0, start=5.0), op(1, seq=1, start=2.0), op(2, stage=1)
    graph = Dependencies([late, early, elsewhere])
    assert graph.of(0, FORWARD) == [early, late]
    assert graph.stages == [0, 1]


def test_an_operation_is_found_by_kind_number_and_stage():
    forward = op(0)
    graph = Dependencies([forward])
    assert graph.get(FORWARD, 0, 0) is forward
    assert graph.get(FORWARD, 1, 0) is None
    assert graph.first_of(0, GC, FORWARD) == [forward]


def test_a_chain_begins_after_all_of_its_anchors():
    a, b, c, d = (op(i, seq=i) for i in range(4))
    graph = Dependencies([a, b, c, d])
    graph.chain([c, d], [a, b])
    assert (graph.after[2], graph.after[3]) == ([0, 1], [2])


def test_nothing_waits_for_a_missing_operation_or_for_itself():
    a = op(0)
    graph = Dependencies([a])
    graph.wait(a, None)
    graph.wait(None, a)
    graph.wait(a, a)
    assert graph.after == {0: []}


def test_chunks_are_counted_from_zero():
    assert Dependencies([op(0, chunk=2)]).chunks == 3
    assert Dependencies([op(0, chunk=-1)]).chunks == 1
