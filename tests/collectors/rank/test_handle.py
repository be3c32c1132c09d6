"""What a script sees: phases, steps and numbers, and that nothing of ours ever reaches its loop."""

from __future__ import annotations

import os
import threading

import pytest
import torch

from pulsetrain.collectors.rank import handle as handle_module
from pulsetrain.collectors.rank.handle import LATE_STEPS, Handle
from pulsetrain.collectors.rank.ring import RingWriter, create_ring
from pulsetrain.collectors.reading.ring_reader import RingReader


class Watched:
    """A handle on a ring of its own, and the reader of it."""

    def __init__(self, slots: int = 1024) -> None:
        fd = create_ring(slots)
        self.handle, self.reader = Handle(RingWriter(fd)), RingReader(fd)
        os.close(fd)

    def spans(self) -> list[tuple[str, str]]:
        """(phase, parent) of what ended since the last call."""
        names = self.reader.names
        return [(names[s["name"]], names[s["parent"]]) for s in self.reader.drain()[0]]

    def open(self) -> list[str]:
        return [phase.name for phase in self.reader.status().stack]

    @property
    def errors(self) -> int:
        return self.reader.status().errors


@pytest.fixture
def watched():
    return Watched()


def test_nested_phases_know_their_parent_and_show_while_open(watched):
    h = watched.handle
    with h.phase("backward"):
        with h.phase("inner"):
            assert watched.open() == ["backward", "inner"]
        assert watched.open() == ["backward"]
    assert watched.open() == []
    assert watched.spans() == [("inner", "backward"), ("backward", "")]


def test_a_phase_may_be_inside_itself_and_deeper_than_the_status_page(watched):
    h = watched.handle

    def descend(depth: int) -> None:
        if depth:
            with h.phase("recursive"):
                descend(depth - 1)

    descend(40)
    assert watched.spans() == [("recursive", "recursive")] * 39 + [("recursive", "")]
    assert watched.open() == []
    assert watched.errors == 0


def test_an_exception_passes_through_and_closes_the_phase(watched):
    with pytest.raises(KeyError), watched.handle.phase("forward"):
        raise KeyError("theirs")
    assert watched.open() == []
    assert watched.spans() == [("forward", "")]


def test_default_and_given_categories(watched):
    h = watched.handle
    for name, category in (("forward", None), ("data", None), ("mine", None), ("shuffle", "communication")):
        with h.phase(name, category):
            pass
    assert list(watched.reader.drain()[0]["category"]) == [0, 2, 4, 1]


def test_a_wrong_category_is_counted_and_not_raised(watched):
    with watched.handle.phase("x", "nonsense"):
        pass
    assert watched.spans() == []
    assert watched.errors == 1


def test_leaving_out_of_order_is_counted_and_not_raised(watched):
    phase = watched.handle.phase("forward")
    phase.__exit__(None, None, None)
    assert watched.errors == 1
    with phase:
        pass
    assert watched.spans() == [("forward", "")]


def test_another_thread_has_a_lane_of_its_own_and_leaves_the_stack_alone(watched):
    h = watched.handle

    def work() -> None:
        with h.phase("data"):
            assert watched.open() == ["forward"]

    with h.phase("forward"):
        thread = threading.Thread(target=work, name="prefetch")
        thread.start()
        thread.join()
    spans = watched.reader.drain()[0]
    names = watched.reader.names
    assert [(names[s["name"]], names[s["lane"]], names[s["parent"]]) for s in spans] == [
        ("data", "prefetch", ""),
        ("forward", "host", ""),
    ]


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


@pytest.mark.parametrize("value", ["not a number", torch.ones(3), object()])
def test_a_number_that_is_none_is_counted_and_not_raised(watched, value):
    watched.handle.log(loss=value)
    watched.handle.step()
    assert watched.errors == 1
    assert list(watched.reader.drain()[1]["flags"]) == [0]


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


class LateNumber:
    """A loss on its way from a device."""

    is_cuda = True

    def __init__(self) -> None:
        self.there = False

    def ready(self) -> bool:
        return self.there

    def value(self) -> float:
        return 4.0


def test_a_step_waits_for_its_loss_without_blocking_later_ones(watched, monkeypatch):
    monkeypatch.setattr(handle_module, "DeviceNumber", lambda value: value)
    h, late = watched.handle, LateNumber()
    h.log(loss=late)
    h.step()
    h.step()
    assert len(watched.reader.drain()[1]) == 0
    assert watched.reader.status().last_step == 1
    late.there = True
    h.step()
    steps = watched.reader.drain()[1]
    assert list(steps["step"]) == [0, 1, 2]
    assert steps["loss"][0] == 4.0


def test_a_loss_that_never_comes_is_given_up(watched, monkeypatch):
    monkeypatch.setattr(handle_module, "DeviceNumber", lambda value: value)
    watched.handle.log(loss=LateNumber())
    for _ in range(LATE_STEPS + 1):
        watched.handle.step()
    steps = watched.reader.drain()[1]
    assert list(steps["step"]) == list(range(LATE_STEPS + 1))
    assert not steps["flags"].any()


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
    h.place({"tp": 1})
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
