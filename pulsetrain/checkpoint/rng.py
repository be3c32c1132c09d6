"""The random generators of a training process, saved and restored like any other state."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, MutableMapping

import numpy as np
import torch

from pulsetrain.checkpoint.memory.layout import Nested

RNG_KEY = "pulsetrain.rng"
NEW_PROCESS_SEED = 67280421310721
"""Of CUDA's generators in a new process: `default_rng_seed_val` of torch's `c10/core/GeneratorImpl.h`."""


class RngState:
    """The generators of Python, numpy (the legacy one), torch's CPU, and the current CUDA device."""

    def state_dict(self) -> dict[str, Nested]:
        """Copies of the current states."""
        version, words, gauss = random.getstate()
        state: dict[str, Nested] = {
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

    def load_state_dict(self, state: Mapping[str, Nested]) -> None:
        """Continue each generator from the saved state."""
        python, legacy = state["python"], state["numpy"]
        random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
        keys = np.asarray(legacy["keys"]).astype(np.uint32)
        np.random.set_state((legacy["name"], keys, legacy["position"], legacy["has_gauss"], legacy["cached"]))
        torch.set_rng_state(state["torch"])
        if "cuda" in state and _cuda_in_use():
            torch.cuda.set_rng_state(state["cuda"])


class CudaSeeds:
    """What CUDA's generators of all devices begin with, where CUDA was not in use when this was made.

    That is torch's own seed, or what the script has asked for since: torch seeds once CUDA is in use.
    """

    def __init__(self) -> None:
        self._was_in_use = _cuda_in_use()
        tracker = getattr(torch.cuda, "_lazy_seed_tracker", None)
        queued = tracker.get_calls() if tracker is not None and not self._was_in_use else []
        self._asked_for = [call[0] for call in queued if call]

    def seed(self) -> None:
        """Seed the generators so, if CUDA has come into use meanwhile. Else does nothing."""
        if self._was_in_use or not _cuda_in_use():
            return
        torch.cuda.manual_seed_all(NEW_PROCESS_SEED)
        for ask in self._asked_for:
            ask()


class StateWithRng(dict[str, object]):
    """The user's state and the generators in one mapping. Restored numbers are set in the user's state."""

    def __init__(self, state: Mapping[str, object], rng: RngState) -> None:
        super().__init__(state, **{RNG_KEY: rng})
        self._state = state

    def __setitem__(self, key: str, value: object) -> None:
        super().__setitem__(key, value)
        if isinstance(self._state, MutableMapping):
            self._state[key] = value


def _cuda_in_use() -> bool:
    """Whether CUDA is initialised in this process. To ask must not initialise it."""
    return "torch.cuda" in sys.modules and torch.cuda.is_initialized()
