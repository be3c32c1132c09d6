"""The dependency graph of a step: waves in an order in which everything comes after what it waits for."""

from __future__ import annotations

import pytest

from pulsetrain.analytics.whatif.graph import build
from pulsetrain.analytics.whatif.operations import Op
from pulsetrain.analytics.whatif.trace import load
from pulsetrain.core.errors import UsageError
from tests.analytics.pipelines import Pipeline


def op(index, kind, *, seq=0, stage=0, start=0.0, chunk=-1):
    return Op(
        index=index, kind=kind, seq=seq, stage=stage, start=start, end=start + 1, chunk=chunk, model_chunk=-1
    )


def after(waves, index):
    """What the operation waits for."""
    (found,) = [w for w in waves if index in w.members]
    return set(found.after[found.members.index(index)])


@pytest.mark.parametrize("chunks", [1, 2])
def test_every_operation_is_in_one_wave_after_all_that_it_waits_for(chunks):
    trace = load(Pipeline(replicas=2, stages=3, chunks=chunks, microbatches=6).table())
    seen: set[int] = set()
    for wave in trace.waves:
        for before in wave.after:
            assert set(before) <= seen
        assert not seen & set(wave.members)
        seen |= set(wave.members)
    assert seen == {o.index for o in trace.ops}


def test_compute_of_a_stage_runs_in_the_order_in_which_it_started():
    waves = build([op(0, "forward-compute", start=1.0, seq=1), op(1, "forward-compute")], replicated=False)
    assert [w.members for w in waves] == [(1,), (0,)]


def test_the_first_forward_of_a_chunk_waits_for_its_parameters():
    ops = [
        op(0, "params-all-gather", chunk=0),
        op(1, "params-all-gather", seq=1, start=0.5, chunk=1),
        op(2, "forward-compute", start=2.0, chunk=0),
        op(3, "forward-compute", seq=1, start=3.0, chunk=1),
    ]
    waves = build(ops, replicated=True)
    assert after(waves, 2) == {0}
    assert after(waves, 3) == {1, 2}


def test_an_overlapped_reduction_waits_for_the_last_backward_of_its_chunk():
    ops = [
        op(0, "backward-compute", start=0.0, chunk=0),
        op(1, "backward-compute", seq=1, start=1.0, chunk=0),
        op(2, "grads-reduce-scatter", start=2.0, chunk=0),
        op(3, "separate-grads-all-reduce", start=3.0),
    ]
    assert after(build(ops, replicated=True), 2) == {1}


def test_clipping_meets_over_all_stages_and_replicas():
    ops = [op(0, "forward-compute"), op(1, "forward-compute", stage=1)]
    ops += [op(2 + s, "optimizer-clip-main-grad", stage=s, start=2.0) for s in range(2)]
    waves = build(ops, replicated=True)
    (clip,) = [w for w in waves if len(w.members) > 1]
    assert (clip.members, clip.communication, clip.replicas) == ((2, 3), True, True)


def test_operations_that_wait_for_each_other_are_named():
    ops = [
        op(0, "forward-compute", start=0.0),
        op(1, "optimizer-clip-main-grad", start=1.0),
        op(2, "params-all-gather", start=2.0),
        op(3, "grads-reduce-scatter", start=1.5),
    ]
    with pytest.raises(UsageError, match="wait for each other in a circle near"):
        build(ops, replicated=True)


def test_no_operation_gives_no_wave():
    assert build([], replicated=False) == []
