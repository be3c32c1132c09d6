"""The elastic example: the same gradient for any number of ranks, and a record of what was used."""

from __future__ import annotations

import importlib.util
import json
from types import ModuleType

import pytest
import torch

from pulsetrain.elastic import ElasticSampler
from tests.repository import ROOT


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_elastic", ROOT / "examples" / "train_elastic.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def first_share(rank, world):
    return next(iter(ElasticSampler(20, batch=13, microbatch=2, rank=rank, world=world)))


def summed(example, monkeypatch, world):
    """The gradient of one batch, added over the ranks of a world."""
    monkeypatch.setattr(example.dist, "all_reduce", lambda tensor: None)
    inputs, targets = example.data(20, 0)
    torch.manual_seed(0)
    model = torch.nn.Linear(example.FEATURES, 1)
    parts = []
    for rank in range(world):
        example.gradients(model, first_share(rank, world), inputs, targets)
        parts.append(model.weight.grad.clone())
    return torch.stack(parts).sum(0)


@pytest.mark.parametrize("world", [2, 3, 20])
def test_any_number_of_ranks_has_the_gradient_of_one(example, monkeypatch, world):
    torch.testing.assert_close(summed(example, monkeypatch, world), summed(example, monkeypatch, 1))


def test_the_record_says_which_samples_a_step_used(example, monkeypatch, tmp_path):
    monkeypatch.setattr(example.dist, "get_world_size", lambda: 2)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "3")
    monkeypatch.setenv("RANK", "1")
    share = first_share(1, 2)
    example.Record(tmp_path).note(7, 0, share)
    row = json.loads((tmp_path / "attempt-3-rank-1.jsonl").read_text())
    assert (row["step"], row["world"]) == (7, 2)
    assert row["ids"] == [index for micro in share.microbatches for index in micro]


def test_without_a_folder_nothing_is_recorded(example, tmp_path):
    example.Record(None).note(7, 0, first_share(0, 1))
    assert list(tmp_path.iterdir()) == []
