"""Which rank has which part, and how other parts are put together."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.checkpoint.resharding.saved_tensors import Offer, SavedTensors, naming_ranks
from pulsetrain.core.errors import CorruptData, NotReshardable
from tests.checkpoint.resharding.shards import WHOLE, columns, layout_of, rows


def saved(split, ranks):
    return SavedTensors({rank: layout_of(split(rank, ranks)) for rank in range(ranks)})


@given(
    st.sampled_from([(rows, 1), (rows, 2), (rows, 3), (rows, 5), (columns, 2), (columns, 3)]),
    st.sampled_from([(rows, 1), (rows, 2), (rows, 3), (rows, 5), (columns, 2), (columns, 3)]),
)
def test_any_split_is_put_together_from_any_other(before, after):
    tensors = saved(*before)
    tensors.check_whole()
    split, ranks = after
    matrix = WHOLE["model.matrix"]
    for rank in range(ranks):
        entry = layout_of(split(rank, ranks)).entries[0]
        start, size, _ = entry.box
        part = np.full(size, -1.0, dtype=np.float32)
        for piece in tensors.pieces(entry) if entry.bytes else ():
            box = tuple(slice(a, a + n) for a, n in zip(piece.box.start, piece.box.size, strict=True))
            part[piece.outside] = matrix[box][piece.inside]
        expected = matrix[tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))]
        assert np.array_equal(part, expected)


def test_copies_are_named_with_their_ranks():
    found = list(itertools.chain(*saved(columns, 2).copies().values()))
    assert [name for name, _ in found] == ["model.bias", "optimizer.state.matrix.step"]
    assert {place.rank for _, box in found for place in box.places} == {0, 1}


def test_a_part_that_is_missing_is_named():
    half = SavedTensors({0: layout_of(columns(0, 2))})
    with pytest.raises(NotReshardable, match=r"model\.matrix: ranks have saved only a part"):
        half.check_whole()
    with pytest.raises(NotReshardable, match="shards do not cover"):
        half.pieces(layout_of(columns(1, 2)).entries[0])


def test_a_tensor_that_nobody_has_saved_is_named():
    tensors = SavedTensors({0: layout_of({}, ["model.matrix"])})
    with pytest.raises(NotReshardable, match=r"model\.bias: no rank has saved it"):
        tensors.pieces(layout_of({}, ["model.bias"]).entries[0])


def test_few_ranks_name_all_tensors_of_a_world():
    matrix, bias = layout_of(rows(0, 2), ["model.matrix"]), layout_of({}, ["model.bias"])
    without = dataclasses.replace(bias, without_tensors=(("optimizer", 0, "bias"),))
    layouts = {0: matrix, 1: layout_of(rows(1, 2), ["model.matrix"]), 2: bias, 3: bias, 4: without}
    assert naming_ranks(layouts) == [0, 2, 4]


def test_an_offer_is_read_as_it_was_written():
    offer = Offer(step=3, tensors={"w": ("float32", (2, 3))}, layout=b"{}", values=b"[1]")
    assert Offer.parse(offer.encode()) == offer
    more = dataclasses.replace(offer, others=((b"{}", b"[2]"),))
    assert Offer.parse(more.encode()) == more
    with pytest.raises(CorruptData, match="not an offer"):
        Offer.parse(b"{}")
