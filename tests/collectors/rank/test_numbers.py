"""Numbers that a script logs, also those that arrive late from a device."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from pulsetrain.collectors.rank import numbers
from pulsetrain.collectors.rank.handle import LATE_STEPS
from pulsetrain.collectors.rank.numbers import number
from pulsetrain.collectors.rank.timers import DeviceNumber


@pytest.mark.parametrize("value", ["not a number", torch.ones(3), object()])
def test_a_number_that_is_none_is_counted_and_not_raised(watched, value):
    watched.handle.log(loss=value)
    watched.handle.step()
    assert watched.errors == 1
    assert list(watched.reader.drain()[1]["flags"]) == [0]


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
    monkeypatch.setattr(numbers, "DeviceNumber", lambda value: value)
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


def test_steps_wait_for_the_number_of_the_first_one(watched):
    h, first = watched.handle, LateNumber()
    h.count_from_late(first)
    h.step()
    h.step()
    assert len(watched.reader.drain()[1]) == 0
    first.there = True
    h.step()
    assert list(watched.reader.drain()[1]["step"]) == [4, 5, 6]
    status = watched.reader.status()
    assert (status.step, status.last_step, status.resumed_step) == (7, 6, 3)


def test_a_checkpoint_of_a_known_step_wins_over_a_number_that_has_not_arrived(watched):
    h, first = watched.handle, LateNumber()
    h.count_from_late(first)
    h.continue_behind(30)
    first.there = True
    h.step()
    h.step()
    assert list(watched.reader.drain()[1]["step"]) == [31, 32]
    h.resume(100)
    h.continue_behind(30)  # who says it wins
    assert watched.reader.status().step == 100


def test_a_number_of_the_first_step_that_never_comes_is_given_up(watched):
    watched.handle.count_from_late(LateNumber())
    for _ in range(LATE_STEPS + 1):
        watched.handle.step()
    assert list(watched.reader.drain()[1]["step"]) == list(range(LATE_STEPS + 1))


def test_who_says_which_step_is_the_next_wins_over_a_number_that_has_not_arrived(watched):
    h, first = watched.handle, LateNumber()
    h.count_from_late(first)
    h.resume(100)
    first.there = True
    h.step()
    assert list(watched.reader.drain()[1]["step"]) == [100]


def test_a_loss_that_never_comes_is_given_up(watched, monkeypatch):
    monkeypatch.setattr(numbers, "DeviceNumber", lambda value: value)
    watched.handle.log(loss=LateNumber())
    for _ in range(LATE_STEPS + 1):
        watched.handle.step()
    steps = watched.reader.drain()[1]
    assert list(steps["step"]) == list(range(LATE_STEPS + 1))
    assert not steps["flags"].any()


@pytest.mark.parametrize("value", [2.5, 2, torch.tensor(2.5), torch.tensor([2.5])])
def test_floats_and_one_element_tensors_are_known_at_once(value):
    known = number(value)
    assert known.ready()
    assert known.value() == float(value)


class Sharded:
    """A DTensor as `number` sees it: a value on this rank only if it is replicated."""

    class placement:
        def __init__(self, replicated):
            self.replicated = replicated

        def is_replicate(self):
            return self.replicated

    def __init__(self, *replicated):
        self.placements = [self.placement(r) for r in replicated]

    def to_local(self):
        return torch.tensor(7.0)


def test_a_distributed_tensor_has_a_value_only_if_it_is_replicated():
    assert number(Sharded(True, True)).value() == 7.0
    with pytest.raises(ValueError, match="not replicated"):
        number(Sharded(True, False))


class ElsewhereNumber:
    """A loss on a device whose copies nobody can wait for without stopping the script."""

    device = torch.device("xpu", 0)

    def detach(self):
        return self

    def __float__(self):
        raise AssertionError("the device was waited for")


def test_a_number_on_another_device_than_cuda_is_not_waited_for():
    with pytest.raises(ValueError, match="type xpu"):
        number(ElsewhereNumber())


def test_a_number_of_a_device_comes_to_the_host_whatever_the_scripts_default_device_is(monkeypatch):
    """There is no CUDA here: memory is not pinned, and the event is one that has passed."""
    empty = torch.empty

    def unpinned(*size, pin_memory, **options):
        assert pin_memory
        return empty(*size, **options)

    event = SimpleNamespace(record=lambda stream: None, query=lambda: True)
    monkeypatch.setattr(torch, "empty", unpinned)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    loss = torch.tensor(4.0)
    with torch.device("meta"):
        late = DeviceNumber(loss)
    assert late.ready()
    assert late.value() == 4.0
