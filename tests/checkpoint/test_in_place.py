"""What a script holds under names of its own gets its saved content too, and nothing else changes with it."""

from collections import Counter, OrderedDict, UserDict, namedtuple

import numpy as np
import torch

from pulsetrain.checkpoint.in_place import typed_like
from pulsetrain.checkpoint.state_restore import put_back

Span = namedtuple("Span", "first last")


def test_mappings_lists_and_arrays_are_filled_where_they_are():
    averages, history, counts = {"w": torch.zeros(2), "old": 1}, [1, 2, 3], np.zeros(2)
    tensor = averages["w"]
    state = {"averages": averages, "history": history, "counts": counts}
    put_back(state, {"averages": {"w": torch.ones(2), "n": 3}, "history": [7], "counts": np.ones(2)})
    assert state["averages"] is averages
    assert averages == {"w": tensor, "n": 3}
    assert tensor.tolist() == [1, 1]
    assert history == [7]
    assert counts.tolist() == [1, 1]


def test_a_tensor_of_another_shape_or_type_is_replaced():
    state = {"kept": {"grown": torch.zeros(1), "wider": torch.zeros(1), "spread": torch.zeros(1).expand(3)}}
    kept = state["kept"]
    saved = {"grown": torch.ones(2), "wider": torch.ones(1).double(), "spread": torch.ones(3)}
    put_back(state, {"kept": saved})
    assert state["kept"] is kept
    assert all(torch.equal(kept[name], value) for name, value in saved.items())
    assert all(kept[name] is not value for name, value in saved.items())  # the arena's memory is written over


def test_what_shares_memory_with_the_model_does_not_change_it():
    """A script may begin with the model's own tensors in the place of the best ones so far."""
    model = torch.nn.Linear(1, 1, bias=False)
    same = {"w": torch.zeros(1)}
    state = {"best": model.state_dict(), "model": model, "one": same, "two": same}
    saved = {"best": {"weight": torch.full((1, 1), 5.0)}, "model": {"weight": torch.full((1, 1), 6.0)}}
    put_back(state, {**saved, "one": {"w": torch.ones(1)}, "two": {"w": torch.full((1,), 2.0)}})
    assert (state["best"]["weight"].item(), model.weight.item()) == (5, 6)
    assert (state["one"]["w"].item(), state["two"]["w"].item()) == (1, 2)


def test_mappings_and_tuples_keep_their_types():
    live = {"c": Counter([1]), "o": [OrderedDict(a=1)], "s": Span(1, 2), "shape": torch.Size([1]), "d": {}}
    saved = {"c": {2: 3}, "o": [{"b": 1}], "s": (3, 4), "shape": (5,), "d": {"x": 1}, "new": (1,)}
    made = typed_like(live, saved)
    assert made == {**saved, "c": Counter({2: 3}), "s": Span(3, 4)}
    assert [type(made[key]) for key in ("c", "s", "shape", "d")] == [Counter, Span, torch.Size, dict]
    assert type(made["o"][0]) is OrderedDict
    assert live["c"] == Counter([1])


def test_a_schedule_of_several_goes_on_at_its_next_milestone():
    def schedule() -> torch.optim.lr_scheduler.SequentialLR:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        parts = torch.optim.lr_scheduler
        warm, steps = parts.ConstantLR(optimizer, 0.1, 2), parts.MultiStepLR(optimizer, [2, 4])
        optimizer.step()
        return parts.SequentialLR(optimizer, [warm, steps], milestones=[2])

    one, other = schedule(), schedule()
    saved = one.state_dict()
    saved["_schedulers"][1]["milestones"] = dict(saved["_schedulers"][1]["milestones"])
    put_back({"s": other}, {"s": saved})
    for _ in range(7):
        one.step()
        other.step()
    assert other.get_last_lr() == one.get_last_lr()


class Fixed(UserDict):
    """A configuration as other libraries have it. Nobody may empty it."""

    def clear(self):
        raise RuntimeError("the configuration is fixed")


def test_a_mapping_of_another_library_is_replaced_and_not_emptied():
    fixed = Fixed({"width": 1})
    state = {"config": fixed}
    put_back(state, {"config": {"width": 2}})
    assert state["config"] == {"width": 2}
    assert fixed["width"] == 1
