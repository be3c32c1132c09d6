"""How many tokens or samples a batch of a data loader holds. Reads shapes only, never a value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

TOKENS, SAMPLES = "tokens", "samples"
TOKEN_NAMES = ("input_ids", "tokens", "tgt_tokens", "decoder_input_ids")
"""Names under which batches of language models carry their tokens."""
TOKEN_TYPES = (torch.int64, torch.int32)
DEPTH = 4
MOST = 64
"""So deep, and at so many tensors, a batch is looked at."""


def size(batch: object) -> tuple[int, str]:
    """Return (count, what is counted). (0, "") where the batch does not say.

    A matrix of integers is a batch of token sequences, unless a tensor of real numbers with three or more
    dimensions lies beside it: then the integers are labels. Without tokens the first dimension counts
    samples.

    >>> size({"input_ids": torch.zeros(2, 8, dtype=torch.int64)}), size((torch.zeros(4, 3, 8, 8),))
    ((16, 'tokens'), (4, 'samples'))
    """
    named = list(_tensors(batch, "", DEPTH))[:MOST]
    for wanted in TOKEN_NAMES:
        for name, tensor in named:
            if name == wanted and tensor.dim() >= 1:
                return tensor.numel(), TOKENS
    tensors = [tensor for _, tensor in named if tensor.dim() >= 1]
    dense = any(t.dim() >= 3 and (t.is_floating_point() or t.dtype == torch.uint8) for t in tensors)
    for tensor in tensors:
        if tensor.dim() == 2 and tensor.dtype in TOKEN_TYPES and not dense:
            return tensor.numel(), TOKENS
    return (int(tensors[0].shape[0]), SAMPLES) if tensors else (0, "")


def _tensors(value: object, name: str, depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a nested batch, each with its key in the innermost mapping."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif depth == 0:
        return
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(item, str(key), depth - 1)
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        for item in value[:MOST]:
            yield from _tensors(item, name, depth - 1)
