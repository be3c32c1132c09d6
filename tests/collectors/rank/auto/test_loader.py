"""Batches of a data loader, and what the script sees of our hook around them."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from pulsetrain.collectors.rank.auto.loader import watched_iter


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


class LookAhead(DataLoader):
    """As accelerate's: knows of each batch whether it is the last one."""

    def ahead(self):
        batches = super().__iter__()
        current = next(batches)
        for batch in batches:
            yield current
            current = batch
        yield current


def test_a_batch_of_a_loader_that_looks_ahead_counts_when_the_script_gets_it(auto, watched, monkeypatch):
    monkeypatch.setattr(LookAhead, "__iter__", watched_iter(LookAhead.ahead, auto))
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = LookAhead(TensorDataset(torch.zeros(5, 4)), batch_size=2)
    for _ in range(2):
        for (batch,) in loader:
            model.train()
            model(batch).sum().backward()
            optimizer.step()
        model.eval()
        assert [len(batch) for (batch,) in loader] == [2, 2, 1]
    auto.loop.finish()
    spans, rows = watched.reader.drain()
    assert rows["tokens"].tolist() == [2, 2, 1] * 2
    epoch = [watched.reader.names[span["name"]] for span in spans][:13]
    assert epoch == ["data", "forward", "backward", "optimizer"] * 3 + ["data"]
    assert watched.errors == 0
