"""Batches of a data loader, and what the script sees of our hook around them."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset


@pytest.mark.parametrize("part", ["begin_fetch", "end_fetch", "fail_fetch"])
def test_a_fault_of_ours_leaves_the_script_its_batches_and_their_end(auto, watched, monkeypatch, part):
    def fails(*_):
        raise RuntimeError("ours")

    monkeypatch.setattr(auto.loop, part, fails)
    assert len(list(DataLoader(TensorDataset(torch.zeros(2, 1))))) == 2
    assert watched.errors > 0
