"""The trainer's side of a restore in a world of another size: it asks its agent for its parts of the state.

What its model and optimizer hold follows from their DTensors, whatever mesh the script has made. Numbers and
settings come from one of the ranks that saved the step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from pulsetrain.checkpoint.memory.arena import ArenaWriter
from pulsetrain.checkpoint.memory.layout import Layout, decode, decode_values, of_one_rank
from pulsetrain.checkpoint.memory.slots import Header, payload_offset
from pulsetrain.checkpoint.reshard import load_form
from pulsetrain.checkpoint.resharding import mailbox
from pulsetrain.checkpoint.resharding.saved_tensors import Offer
from pulsetrain.checkpoint.saved_trees import SavedTrees
from pulsetrain.checkpoint.state_restore import views
from pulsetrain.checkpoint.statetree import Leaves

AGENT_TIMEOUT_S = 600.0
"""without any progress"""


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """Type and global shape of a saved tensor."""

    dtype: str
    shape: tuple[int, ...]


class _Form:
    """A saved state without its content: every tensor is zero."""

    def __init__(self, offer: Offer) -> None:
        self.step = offer.step
        self.tensors = {
            name: _Kind(dtype=dtype, shape=shape) for name, (dtype, shape) in offer.tensors.items()
        }

    def read(self, name: str, start: tuple[int, ...] = (), size: tuple[int, ...] | None = None) -> bytes:
        """Zeros for all of a part."""
        kind = self.tensors[name]
        shape = kind.shape if size is None else size
        return bytes(torch.empty(shape, dtype=getattr(torch, kind.dtype), device="meta").nbytes)


def take_form(state: Mapping[str, object], offer: Offer) -> dict[str, object]:
    """Bring `state` into the form that it has after the step: optimizers get their state.

    Returns a state that is saved as `state` would be then. Objects with a loader of their own are not
    touched, because tensors are zero until they are filled. Raises `CheckpointError` where something is
    missing or has another global shape.
    """
    heads = [(offer.layout, offer.values), *offer.others]
    trees = SavedTrees((decode(layout), decode_values(values)) for layout, values in heads)
    return load_form(_Form(offer), state, trees)


def ask_for_parts(arena: ArenaWriter, header: Header, head: bytes, layout: Layout, leaves: Leaves) -> None:
    """Let the agent fill a slot with what `layout` says, and publish it as this rank's own checkpoint.

    The state of random generators is that of `leaves`. Raises `CheckpointError`.
    """
    writing = arena.begin(dataclasses.replace(header, pinned=False, durable=False))
    assert writing is not None, "what is pinned is of ranks that have ended"
    writing.prefault()
    writing.bytes[: len(head)] = head
    payload = writing.bytes[payload_offset(header.layout_bytes, header.values_bytes) :]
    for entry, target, tensor in zip(layout.entries, views(payload, layout), leaves.locals, strict=True):
        if of_one_rank(entry.name):
            target.copy_(tensor)
    mailbox.ask(arena, writing, timeout_s=AGENT_TIMEOUT_S)
    writing.commit()
