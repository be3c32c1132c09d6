"""Batches of a data loader, and what the script sees of our hook around them."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset


@pytest.mark.parametrize("part", ["begin_fetch", "end_fetch", "fail_fetch"])
def test_a_fault_of_ours_leaves_the_script_its_batches_and_their_end(auto, watched, monkeypatch, part):
    def fails(*_):
        raise RuntimeError("ours")

    monkeypatch.setattr(auto.loop, part, fails)
    assert len(list(DataLoader(TensorDataset(torch.zeros(2, 1))))) == 2
    assert watched.errors > 0


class Packed(IterableDataset):
    """Makes its samples of the batches of a loader of its own."""

    def __iter__(self):
        for (tokens,) in DataLoader(TensorDataset(torch.zeros(6, 4, dtype=torch.long)), batch_size=1):
            yield tokens[0]


def test_a_loader_inside_the_dataset_of_another_one_is_a_part_of_it(auto, watched):
    for _ in DataLoader(Packed(), batch_size=2):
        assert auto.loop.segments.current == "forward"
    assert (auto.loop.waiting.fetched, auto.loop.waiting.tokens) == (3, 3 * 2 * 4)
    assert [name for name, _ in watched.spans()] == ["data"] * 4, "three batches and the end"


def test_a_loader_that_raised_is_asked_again(auto, watched):
    class Broken(TensorDataset):
        def __getitem__(self, index):
            raise OSError("stale file handle")

    for dataset in (Broken(torch.zeros(1, 1)), TensorDataset(torch.zeros(1, 1))):
        with contextlib.suppress(OSError):
            next(iter(DataLoader(dataset)))
    assert auto.loop.waiting.fetched == 1
