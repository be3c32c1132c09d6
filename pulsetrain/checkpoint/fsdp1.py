"""What is different about modules that torch's first FSDP (`FullyShardedDataParallel`) wraps.

Their `state_dict` gives copies, and every rank must call it and `load_state_dict` equally often.
"""

from __future__ import annotations

import sys

import torch

from pulsetrain.core.errors import CheckpointError

_HOME = "torch.distributed.fsdp.fully_sharded_data_parallel"  # not imported here: that takes long


def wrapped(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The parts of a module that FSDP1 wraps."""
    home = sys.modules.get(_HOME)
    if home is None:
        return []
    return [part for part in module.modules() if isinstance(part, home.FullyShardedDataParallel)]


def refuse_rank0_only(key: str, module: torch.nn.Module) -> None:
    """Raise `CheckpointError` where rank 0 alone would get the state, which others could not restore."""
    if any(
        getattr(getattr(part, "_state_dict_config", None), "rank0_only", False) for part in wrapped(module)
    ):
        raise CheckpointError(
            f"{key}: FSDP gives its state to rank 0 only, so that other ranks could not restore it; "
            "use FullStateDictConfig(rank0_only=False) or FSDP2 (fully_shard)"
        )
