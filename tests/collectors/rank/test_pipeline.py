"""Forward and backward of pipeline stages are phases with their microbatch."""

from __future__ import annotations

import pytest
from torch.distributed.pipelining.stage import _PipelineStageBase

from pulsetrain.collectors.rank import pipeline


class Stage(_PipelineStageBase):
    """A stage without a model; its chunks are those of the class."""

    def __init__(self):
        pass

    _create_grad_recv_info = _prepare_backward_infra = _prepare_forward_infra = None


@pytest.fixture
def stage(monkeypatch, watched):
    """A stage whose three methods are wrapped, and the original ones put back afterwards."""
    for method in ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk"):
        monkeypatch.setattr(_PipelineStageBase, method, lambda self, chunk, *args, m=method: (m, chunk, args))
    pipeline.install(watched.handle)
    return Stage()


def test_each_chunk_is_a_phase_of_its_microbatch_and_returns_what_it_did(watched, stage):
    assert stage.forward_one_chunk(2, "x") == ("forward_one_chunk", 2, ("x",))
    stage.backward_one_chunk(1)
    stage.backward_weight_one_chunk(0)
    names = watched.reader.names
    spans = watched.reader.drain()[0]
    seen = [(names[s["name"]], int(s["microbatch"])) for s in spans]
    assert seen == [("forward", 2), ("backward", 1), ("backward", 0)]


def test_a_schedule_may_name_the_microbatch(monkeypatch, watched):
    def forward(self, fwd_chunk_id, *, last=False):
        return fwd_chunk_id, last

    monkeypatch.setattr(_PipelineStageBase, "forward_one_chunk", forward)
    for method in ("backward_one_chunk", "backward_weight_one_chunk"):
        monkeypatch.setattr(_PipelineStageBase, method, getattr(_PipelineStageBase, method))
    pipeline.install(watched.handle)
    assert Stage().forward_one_chunk(last=True, fwd_chunk_id=3) == (3, True)
    assert [int(s["microbatch"]) for s in watched.reader.drain()[0]] == [3]


def test_an_error_of_the_stage_passes_through_and_ends_the_microbatch(monkeypatch, watched):
    def fails(self, chunk):
        raise ValueError("theirs")

    monkeypatch.setattr(_PipelineStageBase, "forward_one_chunk", fails)
    for method in ("backward_one_chunk", "backward_weight_one_chunk"):
        monkeypatch.setattr(_PipelineStageBase, method, getattr(_PipelineStageBase, method))
    pipeline.install(watched.handle)
    stage = Stage()
    with pytest.raises(ValueError, match="theirs"):
        stage.forward_one_chunk(5)
    with watched.handle.phase("after"):
        pass
    assert [int(s["microbatch"]) for s in watched.reader.drain()[0]] == [5, -1]
