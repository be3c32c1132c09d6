"""How many tokens or samples a batch of a data loader holds. Reads shapes only, never a value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, repeat

import torch

TOKENS, SAMPLES = "tokens", "samples"
TOKEN_NAMES = ("input_ids", "tokens", "tgt_tokens", "decoder_input_ids")
"""Names under which batches of language models carry their tokens."""
TOKEN_SUFFIX = "_input_ids"
"""Several texts beside each other, as `anchor_input_ids` and `positive_input_ids`. All of them are tokens."""
TOKEN_TYPES = (torch.int64, torch.int32)
DEPTH = 4
MOST = 64
"""So deep a batch is looked at, and at so many of its parts altogether."""
_FIRST = 8  # of a list, by which it is seen whether it holds tensors
_HOLDERS = (torch.Tensor, Mapping, list, tuple)


def size(batch: object) -> tuple[int, str]:
    """Return (count, what is counted). (0, "") where the batch does not say.

    A matrix of integers is a batch of token sequences, unless a tensor of real numbers with three or more
    dimensions lies beside it: then the integers are labels. Nor is it one where a matrix of real numbers
    comes first, as the features of a recommender do before the indices of its tables. Without tokens the
    first dimension counts samples.

    >>> size({"input_ids": torch.zeros(2, 8, dtype=torch.int64)}), size((torch.zeros(4, 3, 8, 8),))
    ((16, 'tokens'), (4, 'samples'))
    """
    named = _tensors(batch)
    for wanted in TOKEN_NAMES:
        for name, tensor in named:
            if name == wanted and tensor.dim() >= 1:
                return tensor.numel(), TOKENS
    texts = [tensor.numel() for name, tensor in named if name.endswith(TOKEN_SUFFIX)]
    if texts:
        return sum(texts), TOKENS
    tensors = [tensor for _, tensor in named if tensor.dim() >= 1]
    dense = any(t.dim() >= 3 and (t.is_floating_point() or t.dtype == torch.uint8) for t in tensors)
    dense = dense or (bool(tensors) and tensors[0].dim() == 2 and tensors[0].is_floating_point())
    for tensor in tensors:
        if tensor.dim() == 2 and tensor.dtype in TOKEN_TYPES and not dense:
            return tensor.numel(), TOKENS
    return (int(tensors[0].shape[0]), SAMPLES) if tensors else (0, "")


def _tensors(batch: object) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors of a nested batch, the outer ones first, each with its key in the innermost mapping.

    What lies beside them (texts, lists of lists of numbers) may be long, so few parts are looked at.
    """
    found: list[tuple[str, torch.Tensor]] = []
    parts = [("", batch, DEPTH)]  # grows behind the one that is looked at
    for name, value, depth in parts:
        if isinstance(value, torch.Tensor):
            found.append((name, value))
        elif depth:
            inner = islice(_parts(value), MOST - len(parts))
            parts += [(key or name, item, depth - 1) for key, item in inner]
    return found


def _parts(value: object) -> Iterator[tuple[str, object]]:
    """Yield the first parts of a mapping, a list or a tuple that may hold tensors, with their keys."""
    parts: Iterable[tuple[object, object]] = ()
    if isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, list | tuple) and any(isinstance(item, _HOLDERS) for item in value[:_FIRST]):
        parts = zip(repeat(""), value, strict=False)
    for key, item in islice(parts, MOST):
        if isinstance(item, _HOLDERS):
            yield str(key), item
