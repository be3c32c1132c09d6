"""Pulsetrain: the few names a training script needs.

Everything is imported on first use, so that ``import pulsetrain`` costs a training script, a command-line
tool and a parked worker next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pulsetrain.checkpoint.checkpointer import Checkpointer
    from pulsetrain.checkpoint.restarting.restartable import restartable
    from pulsetrain.collectors.rank.handle import Handle, init

__all__ = ["Checkpointer", "Handle", "init", "restartable"]
__version__ = "0.1.0"

_HOMES = {
    "init": "pulsetrain.collectors.rank.handle",
    "Handle": "pulsetrain.collectors.rank.handle",
    "Checkpointer": "pulsetrain.checkpoint.checkpointer",
    "restartable": "pulsetrain.checkpoint.restarting.restartable",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pulsetrain' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
