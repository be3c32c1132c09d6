"""What a script sees: steps, coordinates and no error of ours in its loop."""

from __future__ import annotations

import copy
import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from pulsetrain.collectors.rank import handle as handle_module
from pulsetrain.collectors.rank.handle import Handle
from pulsetrain.collectors.rank.ring import create_ring
from pulsetrain.collectors.reading.ring_reader import RingReader
from tests.collectors.rank.watched import Watched


def test_steps_carry_their_numbers(watched):
    h = watched.handle
    h.log(loss=2.5)
    h.log(grad_norm=torch.tensor(1.5, requires_grad=True))
    h.step(tokens=128, flops=3e9)
    h.step()
    steps = watched.reader.drain()[1]
    assert list(steps["step"]) == [0, 1]
    assert (steps["loss"][0], steps["grad_norm"][0], steps["tokens"][0], steps["flops"][0]) == (
        2.5,
        1.5,
        128,
        3e9,
    )
    assert list(steps["flags"]) == [3, 0]
    page = watched.reader.status()
    assert (page.step, page.last_step) == (2, 1)


def test_spans_belong_to_the_step_in_which_they_end(watched):
    h = watched.handle
    h.resume(41)
    with h.phase("forward"):
        pass
    h.step()
    with h.phase("forward"):
        pass
    spans, steps = watched.reader.drain()
    assert list(spans["step"]) == [41, 42]
    assert list(steps["step"]) == [41]


def test_a_full_ring_leaves_the_loop_alone():
    watched = Watched(slots=64)
    for _ in range(1000):
        with watched.handle.phase("forward"):
            pass
        watched.handle.step()
    spans, steps = watched.reader.drain()
    assert watched.reader.dropped == 2000 - len(spans) - len(steps)
    assert len(spans) > 0
    assert watched.errors == 0


def test_without_an_agent_every_call_does_nothing():
    h = Handle(None)
    with h.phase("forward"), h.phase("x", "nonsense"):
        h.log(loss=torch.ones(7))
    h.step(tokens=1)
    h.resume(3)
    h.set_coordinates({"tp": 1})
    assert not h.active


class Mesh:
    mesh_dim_names = ("pp", "dp", "other")

    def get_local_rank(self, name: str) -> int:
        return {"pp": 1, "dp": 3}[name]


def test_init_takes_coordinates_from_mesh_and_numbers(monkeypatch, watched):
    monkeypatch.setattr(handle_module, "process_handle", lambda: watched.handle)
    assert handle_module.init() is watched.handle
    assert watched.reader.topology() is None
    handle_module.init(Mesh(), tp=2, dp=5)
    assert watched.reader.topology() == (2, 1, 5, 0, 0)


def test_init_with_a_mesh_of_another_make_counts_and_goes_on(monkeypatch, watched):
    monkeypatch.setattr(handle_module, "process_handle", lambda: watched.handle)
    handle_module.init(object())
    assert watched.errors == 1
    assert watched.reader.topology() is None


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_is_muted(monkeypatch):
    """A data loader's worker inherits the handle; the ring stays the parent's."""
    fd = create_ring(64)
    monkeypatch.setenv("PULSETRAIN_RING_FD", str(fd))
    monkeypatch.setenv("PULSETRAIN_RESTORE_STEP", "6")
    handle_module.process_handle.cache_clear()
    h, reader = handle_module.process_handle(), RingReader(fd)
    try:
        kept = h.phase("forward")
        pid = os.fork()
        if pid == 0:
            with kept, h.phase("data"):
                h.step()
            os._exit(0)
        os.waitpid(pid, 0)
        assert [len(rows) for rows in reader.drain()] == [0, 0]
        assert reader.status().last_step == 6
    finally:
        handle_module.process_handle.cache_clear()
        os.close(fd)


def test_a_handle_and_its_phases_that_a_module_keeps_are_copied_and_pickled_with_it(watched):
    module = torch.nn.Linear(1, 1)
    module.watch, module.span = watched.handle, watched.handle.phase("forward")
    for twin in (copy.deepcopy(module), copy.copy(module)):
        assert twin.watch is watched.handle
        with twin.span:
            pass
    assert watched.spans() == [("forward", "")] * 2
    read = pickle.loads(pickle.dumps(module))
    assert read.watch is handle_module.process_handle()
    with read.span:
        pass
    assert watched.spans() == []


def test_a_phase_of_another_thread_is_copied_too(watched):
    with ThreadPoolExecutor(1) as threads:
        span = threads.submit(watched.handle.phase, "load").result()
    assert copy.deepcopy([span]) == [span]
    with pickle.loads(pickle.dumps(span)):
        pass
    assert watched.spans() == []
