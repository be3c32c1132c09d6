"""The random generators of a training process, saved and restored like any other state."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


class RngState:
    """Python's, numpy's legacy, torch's CPU, and the current CUDA device's generator."""

    def state_dict(self) -> dict[str, Any]:
        """Copies, taken now."""
        version, words, gauss = random.getstate()
        state: dict[str, Any] = {
            "python": {"version": version, "words": np.array(words, dtype=np.int64), "gauss": gauss},
            "torch": torch.get_rng_state(),
        }
        name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
        state["numpy"] = {
            "name": str(name),
            "keys": np.asarray(keys, dtype=np.int64),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": float(cached),
        }
        if _cuda_in_use():
            state["cuda"] = torch.cuda.get_rng_state()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue each generator where it stood."""
        python, legacy = state["python"], state["numpy"]
        random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
        keys = np.asarray(legacy["keys"]).astype(np.uint32)
        np.random.set_state((legacy["name"], keys, legacy["position"], legacy["has_gauss"], legacy["cached"]))
        torch.set_rng_state(state["torch"])
        if "cuda" in state and _cuda_in_use():
            torch.cuda.set_rng_state(state["cuda"])


def _cuda_in_use() -> bool:
    """CUDA is initialised in this process; asking must not initialise it."""
    return "torch.cuda" in sys.modules and torch.cuda.is_initialized()
