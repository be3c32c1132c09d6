"""Public: load a checkpoint into a job of another shape."""

from pulsetrain.checkpoint.reshard import load_resharded

__all__ = ["load_resharded"]
