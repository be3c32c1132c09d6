"""The walk over a state: whatever its nesting, each leaf is taken once, in order, and found again."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.checkpoint.memory import layout as layouts
from pulsetrain.checkpoint.statetree import collect, layout_of
from pulsetrain.core.errors import CheckpointError


class Scale(float):
    """A number of a type of its own."""


TENSORS = st.integers(0, 5).map(torch.arange)
PARAMETERS = st.integers(1, 5).map(lambda n: torch.nn.Parameter(torch.full((n,), 0.5)))
ARRAYS = st.integers(0, 5).map(np.arange)
VALUES = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=3), st.just(Scale(2.5)))
STATES = st.dictionaries(
    st.text(min_size=1, max_size=3),
    st.recursive(
        st.one_of(TENSORS, PARAMETERS, ARRAYS, VALUES),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.lists(inner, max_size=4).map(tuple),
            st.dictionaries(st.one_of(st.text(max_size=3), st.integers(0, 9)), inner, max_size=4),
            st.dictionaries(st.text(max_size=3), inner, max_size=4).map(OrderedDict),
        ),
        max_leaves=20,
    ),
    max_size=4,
)


def same(found, expected) -> bool:
    """Equal content in containers of the kind that a layout knows."""
    if isinstance(expected, torch.Tensor):
        return isinstance(found, torch.Tensor) and torch.equal(found, expected)
    if isinstance(expected, np.ndarray):
        return isinstance(found, np.ndarray) and np.array_equal(found, expected)
    if isinstance(expected, dict):
        return list(found) == list(expected) and all(same(found[k], expected[k]) for k in expected)
    if isinstance(expected, list | tuple):
        kinds = type(found) is (tuple if isinstance(expected, tuple) else list)
        return kinds and len(found) == len(expected) and all(map(same, found, expected))
    return found == expected and isinstance(found, type(expected))


@pytest.mark.parametrize("array", [np.arange(4)[::-1], np.arange(3, dtype=">i4"), np.array([1, 2])[::2]])
def test_an_array_that_torch_cannot_share_is_copied(array):
    leaves = collect({"data": {"order": [array]}})
    assert leaves.tensors[0].tolist() == array.tolist()


def test_an_array_of_a_type_that_torch_does_not_have_is_named():
    with pytest.raises(CheckpointError, match=r"data\.1\.names: an array of <U1 cannot be saved"):
        collect({"data": [1, {"names": np.array(["a", "b"])}]})


@given(STATES)
def test_a_state_is_rebuilt_from_its_leaves(state):
    leaves = collect(state)
    assert len(leaves.optimizer_owned) == len(leaves.tensors) == len(leaves.locals)
    assert same(layouts.rebuild(leaves.tree, leaves.tensors, leaves.values), state)
    layout = layout_of(state, leaves)
    again = layouts.decode(layout.encode())
    assert len(again.entries) == len(leaves.tensors)


@given(STATES, STATES)
def test_equal_signatures_mean_equal_layouts(one, other):
    first, second = collect(one), collect(other)
    same_layout = layout_of(one, first) == layout_of(other, second)
    assert (first.signature != second.signature) or same_layout


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.update(more=torch.zeros(1)),
        lambda s: s.update(w=torch.zeros(2, 3)),
        lambda s: s.update(w=torch.zeros(6, dtype=torch.float64)),
        lambda s: s.update(w=np.zeros(6, dtype=np.float32)),
        lambda s: s.update(lr=(0.1,)),
        lambda s: s["nested"].pop("a"),
    ],
)
def test_what_changes_the_layout_changes_the_signature(change):
    state = {"w": torch.zeros(6), "lr": 0.1, "nested": {"a": torch.zeros(1), "b": torch.ones(1)}}
    before = collect(state).signature
    state["lr"] = 0.2  # a value does not
    assert collect(state).signature == before
    change(state)
    assert collect(state).signature != before


@pytest.mark.parametrize(
    ("state", "where"),
    [
        ({"a": {"b": [1, object()]}}, r"a\.b\.1: a object"),
        ({"a": {"b": {1.5: 2}}}, r"a\.b: key 1\.5"),
        ({"a": {"b": {("x",): torch.zeros(1)}}}, r"a\.b: key \('x',\)"),
    ],
)
def test_the_path_of_an_unsupported_value_is_named(state, where):
    with pytest.raises(CheckpointError, match=where):
        collect(state)


@pytest.mark.parametrize(
    ("tensor", "kind"),
    [
        (torch.empty(2, device="meta"), "without content"),
        (torch.eye(2).to_sparse(), "sparse"),
        (torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged), "nested"),
    ],
)
def test_a_tensor_that_cannot_be_copied_is_named(tensor, kind):
    """Else each save would fail, and say so only in its result."""
    state = {"state": {"odd": tensor}}
    with pytest.raises(CheckpointError, match=rf"state.odd: a tensor that is {kind}.* cannot be saved"):
        layout_of(state, collect(state))


def test_an_object_that_could_not_be_restored_is_named():
    class Counter:
        def state_dict(self):
            return {"count": 1}

    with pytest.raises(CheckpointError, match="seen: a Counter has state_dict and no load_state_dict"):
        collect({"seen": Counter()})
