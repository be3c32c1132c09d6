from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint import state_dict
from torch.distributed.pipelining import stage
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import dataloader

from pulsetrain.collectors.rank.auto import backward, evaluation, loader, optimizers
from pulsetrain.collectors.rank.auto.context import Auto
from pulsetrain.collectors.rank.auto.install import context
from tests.collectors.rank.watched import Watched


@pytest.fixture
def auto(monkeypatch, watched: Watched) -> Iterator[Auto]:
    """Everything that infers the training loop, put into this process and taken out again."""
    scaler = torch.amp.grad_scaler.GradScaler
    for owner, name in (
        (torch.autograd, "backward"),
        (scaler, "scale"),
        (scaler, "__init__"),
        (scaler, "step"),
        (nn.Module, "train"),
        (dataloader._BaseDataLoaderIter, "__next__"),
        (state_dict, "_init_optim_state"),
        (stage, "stage_backward_input"),
        (stage, "stage_backward_weight"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    for hooks in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
        monkeypatch.setattr(torch_optimizer, hooks, getattr(torch_optimizer, hooks).copy())
    auto = context(watched.handle)
    for part in (backward, optimizers, loader, evaluation):
        part.install(auto)
    return auto
