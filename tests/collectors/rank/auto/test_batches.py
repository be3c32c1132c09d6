"""What a batch says of its size."""

from __future__ import annotations

from collections import namedtuple

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
        (["a text"], (0, "")),
        (None, (0, "")),
        (torch.zeros(()), (0, "")),
    ],
)
def test_the_size_of_a_batch(batch, wanted):
    assert size(batch) == wanted
