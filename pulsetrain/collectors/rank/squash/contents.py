"""What an optimizer's update reads and writes: tensors and numbers, in an order that all replicas share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import xxhash

from pulsetrain.collectors.squash_layout import ALIGNED, BUFFER_BYTES, MAX_TENSORS, NUMBERS_BYTES, pages

CLOSURES = "LBFGS"
CHUNK_BYTES, ONE_IN = 4096, 8
"""Of a tensor of `LARGE_BYTES`, one in so many chunks is read before an update that is handed over."""
LARGE_BYTES = 1 << 18
CHUNKS_AT_ONCE = 32  # so that what is read stays in the processor's cache
SCALED = ("grad_scale", "found_inf")  # set by a `GradScaler` whose optimizer decides about a step by itself


@dataclass(frozen=True)
class Entry:
    """One tensor. `name` says which one it is. `at` is its place in a buffer."""

    name: str
    tensor: torch.Tensor
    at: int


@dataclass(frozen=True)
class Contents:
    """Tensors that an update may write (`entries`), gradients, and what the optimizer keeps beside tensors.

    `parameters` is how many of the first entries are parameters, and `of_groups` how many of the last ones
    are tensors of groups, such as a learning rate. `numbers` is JSON.
    """

    entries: tuple[Entry, ...]
    parameters: int
    gradients: tuple[Entry, ...]
    numbers: bytes
    of_groups: int = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of a buffer, room for the numbers included."""
        return _buffer_bytes([entry.tensor for entry in self.entries])

    @cached_property
    def layout(self) -> int:
        """A digest of names, shapes and types. 63 bits."""
        said = [(e.name, tuple(e.tensor.shape), str(e.tensor.dtype)) for e in self.entries]
        return xxhash.xxh3_64_intdigest(repr(said).encode()) >> 1

    @cached_property
    def signature(self) -> int:
        """A digest of all that decides which tensors an update makes. Of numbers it is whether they are 0."""
        numbers = [bool(n) if isinstance(n, (int, float)) else n for n in json.loads(self.numbers)]
        said = (self.layout, [gradient.name for gradient in self.gradients], numbers)
        return xxhash.xxh3_64_intdigest(repr(said).encode()) >> 1

    def same_tensors(self, other: Contents) -> bool:
        """Whether the other one has the very same tensors. Their bytes may differ."""
        return len(self.entries) == len(other.entries) and all(
            ours.tensor is theirs.tensor and ours.name == theirs.name
            for ours, theirs in zip(self.entries, other.entries, strict=True)
        )

    def inputs(self) -> list[Entry]:
        """What an update begins with that anybody but the optimizer may have written."""
        of_groups = self.entries[len(self.entries) - self.of_groups :]
        return [*self.entries[: self.parameters], *of_groups, *self.gradients]

    def everything(self) -> list[Entry]:
        """All tensors."""
        return [*self.entries, *self.gradients]


def refusal(optimizer: torch.optim.Optimizer) -> str:
    """Why this optimizer's update cannot be taken over, "" where it can.

    Only torch's own optimizers keep all that they know in their state and their groups.
    """
    kind = type(optimizer)
    if not f"{kind.__module__}.".startswith("torch.optim.") or kind.__name__ == CLOSURES:
        return f"{kind.__name__} may keep more than its state"
    if any(getattr(optimizer, name, None) is not None for name in SCALED):
        return "a GradScaler decides inside the update"
    tensors = [t for _, t in _tensors(optimizer)]
    if len(tensors) + sum(t.grad is not None for t in _parameters(optimizer)) > MAX_TENSORS:
        return f"{len(tensors)} tensors"
    if _buffer_bytes(tensors) > BUFFER_BYTES:
        return f"{_buffer_bytes(tensors):,} bytes of tensors, and a buffer has {BUFFER_BYTES:,}"
    for tensor in tensors:
        why = _unfit(tensor) or (_unfit(tensor.grad) if tensor.grad is not None else "")
        if why:
            return why
    if any(not isinstance(value, (int, float, str, type(None))) for value in _values(optimizer)):
        return "its state holds more than tensors and numbers"
    return ""


def read(optimizer: torch.optim.Optimizer) -> Contents:
    """Return what the optimizer has now. Only for one that is not refused."""
    entries, at = [], 0
    for name, tensor in _tensors(optimizer):
        entries.append(Entry(name, tensor, at))
        at += _aligned(tensor.nbytes)
    parameters = list(_parameters(optimizer))
    gradients = tuple(
        Entry(f"gradient of parameter {i}", p.grad, 0) for i, p in enumerate(parameters) if p.grad is not None
    )
    numbers = json.dumps(list(_values(optimizer))).encode()
    if len(numbers) > NUMBERS_BYTES:
        raise ValueError(f"{len(numbers)} bytes of numbers")
    return Contents(tuple(entries), len(parameters), gradients, numbers, len(_of_groups(optimizer)))


def set_numbers(optimizer: torch.optim.Optimizer, numbers: bytes) -> None:
    """Take over what another replica keeps beside tensors."""
    values = iter(json.loads(numbers))
    for group in optimizer.param_groups:
        for key in _number_keys(group):
            group[key] = _like(group[key], values)
    for parameter in _parameters(optimizer):
        state = optimizer.state.get(parameter, {})
        for key in _number_keys(state):
            state[key] = _like(state[key], values)


def digest(tensor: torch.Tensor) -> int:
    """A digest of a tensor's bytes. 63 bits.

    >>> zero = digest(torch.tensor([0.0]))
    >>> zero == digest(torch.zeros(1)), zero == digest(torch.tensor([-0.0]))
    (True, False)
    """
    flat = tensor.detach().reshape(-1).view(torch.uint8)
    return xxhash.xxh3_64_intdigest(flat.numpy().data) >> 1 if flat.numel() else 0


def digests(entries: Sequence[Entry], numbers: bytes) -> list[int]:
    """Digests of the tensors, and of the numbers behind them."""
    return [*(digest(entry.tensor) for entry in entries), xxhash.xxh3_64_intdigest(numbers) >> 1]


def guards(entries: Sequence[Entry], numbers: bytes, turn: int) -> list[int]:
    """As `digests`, but of large tensors a part, which is another one in each turn."""
    return [*(_part_digest(e.tensor, turn) for e in entries), xxhash.xxh3_64_intdigest(numbers) >> 1]


def _part_digest(tensor: torch.Tensor, turn: int) -> int:
    if tensor.nbytes < LARGE_BYTES:
        return digest(tensor)
    flat = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    rows = flat[: flat.size // (ONE_IN * CHUNK_BYTES) * ONE_IN * CHUNK_BYTES].reshape(
        -1, ONE_IN * CHUNK_BYTES
    )
    at = turn % ONE_IN * CHUNK_BYTES
    found, part = xxhash.xxh3_64(), np.empty((CHUNKS_AT_ONCE, CHUNK_BYTES), np.uint8)
    for first in range(0, len(rows), CHUNKS_AT_ONCE):
        some = rows[first : first + CHUNKS_AT_ONCE, at : at + CHUNK_BYTES]
        part[: len(some)] = some
        found.update(part[: len(some)].data)
    found.update(flat[rows.size :].data)
    return found.intdigest() >> 1


def marks(optimizer: torch.optim.Optimizer) -> tuple[tuple[int, int], ...]:
    """Where each parameter lies, and how often torch has written it. Who writes it by torch changes that."""
    return _marks(_parameters(optimizer))


def marks_of(now: Contents) -> tuple[tuple[int, int], ...]:
    """As `marks`."""
    return _marks(entry.tensor for entry in now.entries[: now.parameters])


def _marks(parameters: Iterable[torch.Tensor]) -> tuple[tuple[int, int], ...]:
    return tuple((p.data_ptr(), p._version) for p in parameters)


def note_update(entries: Sequence[Entry]) -> None:
    """Tell autograd that tensors were written, as an update in place does."""
    torch.autograd.graph.increment_version([entry.tensor for entry in entries])


def wrote_gradients(before: Sequence[int], after: Sequence[int], gradients: int) -> bool:
    """Whether an update has changed gradients: the last so many digests but one, of its numbers.

    >>> wrote_gradients([1, 5, 9], [2, 5, 9], 1), wrote_gradients([1, 5, 9], [2, 6, 9], 1)
    (False, True)
    """
    return list(before[-1 - gradients : -1]) != list(after[-1 - gradients : -1])


def first_difference(ours: Sequence[int], theirs: Sequence[int], entries: Sequence[Entry]) -> str:
    """The name of the first tensor whose digests differ, "" for none.

    >>> first_difference([1, 2], [1, 3], [Entry("parameter 0", torch.zeros(1), 0)])
    'the numbers beside the tensors'
    """
    if len(ours) != len(theirs):
        return "the number of tensors"
    for i, (our, their) in enumerate(zip(ours, theirs, strict=True)):
        if our != their:
            return entries[i].name if i < len(entries) else "the numbers beside the tensors"
    return ""


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _tensors(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters, then their states, then tensors of the groups, such as a learning rate."""
    parameters = list(_parameters(optimizer))
    for i, parameter in enumerate(parameters):
        yield f"parameter {i}", parameter
    for i, parameter in enumerate(parameters):
        for key, value in sorted(optimizer.state.get(parameter, {}).items()):
            if isinstance(value, torch.Tensor):
                yield f"{key} of parameter {i}", value
    yield from _of_groups(optimizer)


def _of_groups(optimizer: torch.optim.Optimizer) -> list[tuple[str, torch.Tensor]]:
    return [
        (f"{key} of group {i}", value)
        for i, group in enumerate(optimizer.param_groups)
        for key, value in sorted(group.items())
        if isinstance(value, torch.Tensor)
    ]


def _buffer_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Bytes of a buffer for these tensors in turn, room for the numbers included."""
    *others, last = (tensor.nbytes for tensor in tensors) if tensors else (0,)
    return pages(sum(_aligned(each) for each in others) + last) + NUMBERS_BYTES


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNED) * ALIGNED


def _number_keys(values: dict[str, Any]) -> list[str]:
    return sorted(key for key, v in values.items() if key != "params" and not isinstance(v, torch.Tensor))


def _values(optimizer: torch.optim.Optimizer) -> Iterator[object]:
    """What groups and states hold beside tensors. A tuple, such as `betas`, gives each of its values."""
    for group in optimizer.param_groups:
        for key in _number_keys(group):
            yield from _flat(group[key])
    for parameter in _parameters(optimizer):
        state = optimizer.state.get(parameter, {})
        for key in _number_keys(state):
            yield from _flat(state[key])


def _flat(value: object) -> Iterator[object]:
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from _flat(part)
    else:
        yield value


def _like(value: Any, values: Iterator[Any]) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(_like(part, values) for part in value)
    return next(values)


def _unfit(tensor: torch.Tensor) -> str:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return f"a {type(tensor).__name__} is no plain tensor"
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or not tensor.is_contiguous():
        return "a tensor is not contiguous in the host's memory"
    if tensor.is_shared():
        return "a tensor lies in memory that other processes may read"
    return ""
