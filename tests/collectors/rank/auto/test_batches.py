"""What a batch says of its size."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence

import pytest
import torch

from pulsetrain.collectors.rank.auto.batches import SAMPLES, TOKENS, size

INTEGERS = torch.zeros(2, 8, dtype=torch.int64)
Pair = namedtuple("Pair", "inputs targets")


@pytest.mark.parametrize(
    ("batch", "wanted"),
    [
        (INTEGERS, (16, TOKENS)),
        ([INTEGERS, INTEGERS], (16, TOKENS)),
        (Pair(INTEGERS, INTEGERS), (16, TOKENS)),
        ({"labels": torch.zeros(2, 9), "input_ids": INTEGERS}, (16, TOKENS)),
        ({"text": {"input_ids": INTEGERS}, "image": torch.zeros(2, 3, 4, 4)}, (16, TOKENS)),
        ((torch.zeros(4, 3, 8, 8), torch.zeros(4, dtype=torch.int64)), (4, SAMPLES)),
        ((torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.zeros(4, 5, dtype=torch.int64)), (4, SAMPLES)),
        ((torch.zeros(4, 7), torch.zeros(4)), (4, SAMPLES)),
        ((torch.zeros(4, 7), torch.zeros(3, 4, dtype=torch.int64), torch.zeros(4, 1)), (4, SAMPLES)),
        ([INTEGERS, INTEGERS, torch.zeros(2, 8)], (16, TOKENS)),
        (
            {"anchor_input_ids": INTEGERS, "anchor_mask": INTEGERS, "positive_input_ids": INTEGERS},
            (32, TOKENS),
        ),
        ({"texts": ["a"] * 500, "ids": [[1, 2]] * 500, "input_ids": INTEGERS}, (16, TOKENS)),
        ([["a", "b"], INTEGERS], (16, TOKENS)),
        ([3, INTEGERS], (16, TOKENS)),
        (["a text"], (0, "")),
        (None, (0, "")),
        (torch.zeros(()), (0, "")),
    ],
)
def test_the_size_of_a_batch(batch, wanted):
    assert size(batch) == wanted


def test_of_long_nested_lists_few_parts_are_touched():
    class Counting(dict):
        touched = 0

        def items(self):
            Counting.touched += 1
            return super().items()

    assert size([[Counting(a=[1] * 1000) for _ in range(512)] for _ in range(512)]) == (0, "")
    assert Counting.touched <= 64


def test_a_sequence_that_loads_what_it_is_asked_for_is_not_asked():
    class Dataset(Sequence):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            raise AssertionError("was read")

    assert size({"data": Dataset(), "input_ids": INTEGERS}) == (16, TOKENS)
