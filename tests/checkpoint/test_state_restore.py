"""A saved state reaches the live objects in place, or an error names what does not fit."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pulsetrain.checkpoint.memory.layout import Entry, Layout
from pulsetrain.checkpoint.state_restore import put_back, views
from pulsetrain.core.errors import CheckpointError
from tests.checkpoint.extra_state import copying


class Schedule:
    """Anything with a state of its own."""

    def __init__(self) -> None:
        self.loaded = None

    def state_dict(self) -> dict:
        return {"last": 1}

    def load_state_dict(self, state) -> None:
        self.loaded = state


def stepped(optimizer, model):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return optimizer


def test_views_share_the_payload():
    payload = memoryview(bytearray(np.arange(8, dtype=np.float32).tobytes()))
    layout = Layout(
        entries=(
            Entry(name="a", dtype="float32", shape=(2, 2), offset=0, bytes=16),
            Entry(name="b", dtype="int64", shape=(2,), offset=16, bytes=16),
            Entry(name="none", dtype="float16", shape=(0, 3), offset=32, bytes=0),
        ),
        tree={},
    )
    a, b, none = views(payload, layout)
    assert a.tolist() == [[0, 1], [2, 3]]
    assert (b.dtype, none.shape, none.dtype) == (torch.int64, (0, 3), torch.float16)
    a[0, 0] = 7
    assert np.frombuffer(payload[:4], dtype=np.float32)[0] == 7


def test_modules_and_tensors_are_filled_in_place():
    model, tensor = torch.nn.Linear(4, 2), torch.zeros(3)
    weight = model.weight
    saved = {
        "model": {"weight": torch.full((2, 4), 5.0), "bias": torch.full((2,), 6.0)},
        "tensor": torch.ones(3),
    }
    put_back({"model": model, "tensor": tensor}, saved)
    assert model.weight is weight
    assert float(weight.detach().sum()) == 40
    assert tensor.tolist() == [1, 1, 1]


def test_a_module_whose_state_is_a_copy_loads_it_by_itself():
    model = torch.nn.Sequential(copying(torch.nn.Linear(4, 2)), torch.nn.Linear(2, 1))
    saved = {name: torch.full_like(value, 5.0) for name, value in model.state_dict().items()}
    put_back({"model": model}, {"model": saved})
    assert all(bool((one == 5).all()) for one in model.parameters())


def test_state_that_is_kept_elsewhere_and_is_no_copy_is_filled_in_place():
    model, elsewhere = torch.nn.Linear(1, 1), torch.zeros(2)
    model._register_state_dict_hook(lambda module, state, *rest: state.update(elsewhere=elsewhere))
    put_back({"m": model}, {"m": {name: torch.ones_like(v) for name, v in model.state_dict().items()}})
    assert elsewhere.tolist() == [1, 1]
    assert model.weight.item() == 1


def test_numbers_and_other_objects_get_copies_of_their_own():
    schedule, array = Schedule(), np.ones(2)
    state = {"schedule": schedule, "position": 0}
    saved = {"schedule": {"x": array, "l": [torch.ones(1), (2, 3)]}, "position": 44}
    put_back(state, saved)
    array[:] = 9  # the arena's memory is written over later
    assert schedule.loaded["x"].tolist() == [1, 1]
    assert schedule.loaded["l"][1] == (2, 3)
    assert state["position"] == 44


def test_optimizer_state_that_is_there_is_filled_in_place():
    model = torch.nn.Linear(4, 2)
    optimizer = stepped(torch.optim.AdamW(model.parameters()), model)
    saved = {key: value for key, value in optimizer.state_dict().items()}
    saved["state"] = {
        i: {k: torch.full_like(v, 3.0) for k, v in entry.items()} for i, entry in saved["state"].items()
    }
    moment = optimizer.state[model.weight]["exp_avg"]
    put_back({"o": optimizer}, {"o": saved})
    assert optimizer.state[model.weight]["exp_avg"].data_ptr() == moment.data_ptr()
    assert float(moment[0, 0]) == 3.0


def test_an_optimizer_that_has_not_stepped_gets_its_state():
    model = torch.nn.Linear(4, 2)
    other = torch.nn.Linear(4, 2)
    saved = stepped(torch.optim.AdamW(other.parameters(), lr=0.5), other).state_dict()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    put_back({"o": optimizer}, {"o": saved})
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert torch.equal(optimizer.state[model.weight]["exp_avg"], saved["state"][0]["exp_avg"])


def test_state_of_another_element_type_than_its_parameter_is_not_rounded():
    model = torch.nn.Linear(2, 1, bias=False).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fine = torch.tensor([[1.001, 2.002]])
    parts = {"whole": fine, "parts": {"left": [fine[:, 0]], "right": (fine[:, 1], 7)}}
    put_back({"o": optimizer}, {"o": {**optimizer.state_dict(), "state": {0: parts}}})
    kept = optimizer.state[model.weight]
    assert torch.equal(kept["whole"], fine)
    assert torch.equal(kept["parts"]["left"][0], fine[:, 0])
    assert torch.equal(kept["parts"]["right"][0], fine[:, 1])
    assert kept["parts"]["right"][1] == 7


def test_settings_that_are_tensors_stay_on_their_device():
    """A learning rate in a CUDA graph is on the device. It is saved from there to the host."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    optimizer.param_groups[0]["lr"] = torch.empty((), device="meta")
    group = {**optimizer.state_dict()["param_groups"][0], "lr": torch.tensor(0.5)}
    put_back({"o": optimizer}, {"o": {"state": {}, "param_groups": [group]}})
    assert optimizer.param_groups[0]["lr"].device.type == "meta"


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        ({"model": {}}, "checkpoint has no w; it has: model"),
        ({"w": torch.zeros(4)}, r"w: \(3,\) torch.float32 does not fit what was saved: \(4,\) torch.float32"),
        ({"w": torch.zeros(3, dtype=torch.float64)}, r"does not fit what was saved: \(3,\) torch.float64"),
        ({"w": 7}, "does not fit what was saved: 7"),
    ],
)
def test_what_does_not_fit_is_named(saved, message):
    with pytest.raises(CheckpointError, match=message):
        put_back({"w": torch.zeros(3)}, saved)


def test_a_model_of_other_parameters_is_named():
    with pytest.raises(CheckpointError, match="m: model and checkpoint differ in bias, scale"):
        put_back({"m": torch.nn.Linear(2, 2)}, {"m": {"weight": torch.zeros(2, 2), "scale": torch.zeros(1)}})


def test_a_full_state_of_fsdp_is_asked_for_once(monkeypatch):
    """Each call gathers the whole model, and every rank must make as many."""

    class Wrapped(torch.nn.Linear):
        calls = 0

        def state_dict(self, *args, **options):
            self.calls += 1
            return super().state_dict(*args, **options)

    home = SimpleNamespace(FullyShardedDataParallel=Wrapped)
    monkeypatch.setitem(sys.modules, "torch.distributed.fsdp.fully_sharded_data_parallel", home)
    model = copying(Wrapped(4, 2))
    put_back({"model": model}, {"model": {"weight": torch.ones(2, 4), "bias": torch.ones(2)}})
    assert (model.calls, float(model.weight.detach().sum())) == (1, 8)
