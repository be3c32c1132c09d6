"""What ranks have saved besides the content of tensors: structure, numbers, settings, and names of tensors.

Ranks of one world may have saved different parts of a model, such as the stages of a pipeline. So a few of
them, which together name every tensor, say what there is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pulsetrain.checkpoint.memory.layout import Layout, Nested, Plain, rebuild
from pulsetrain.core.errors import CheckpointError
from pulsetrain.elastic.saved_optimizer import SavedOptimizer, TensorName, names_in
from pulsetrain.elastic.split_state import is_part


@dataclass(frozen=True, kw_only=True)
class _Head:
    """One rank's state, with names in place of its tensors."""

    layout: Layout
    tree: Mapping[str, Nested]


class SavedTrees:
    """The states of the ranks that a world's tensors are named by. The first one says what is no tensor."""

    def __init__(self, heads: Iterable[tuple[Layout, Sequence[Plain]]]) -> None:
        self._heads = [_Head(layout=layout, tree=_named(layout, values)) for layout, values in heads]

    def __contains__(self, key: str) -> bool:
        return any(key in head.tree for head in self._heads)

    def has_tensors(self, key: str) -> bool:
        """Whether any rank has saved a tensor in that entry of the state."""
        return any(names_in(entry) for entry in self._entries(key))

    def entry(self, key: str, live: Iterable[str] = ()) -> Nested:
        """An entry of the state as one rank has saved it: the first that has all of the `live` tensors.

        Raises `CheckpointError` where there is no such entry, or where no single rank has saved all of them.
        """
        entries = self._entries(key)
        if not entries:
            raise CheckpointError(f"checkpoint has no {key}; it has: {', '.join(self._heads[0].tree)}")
        needed = set(live) & {str(name) for entry in entries for name in names_in(entry)}
        lacking = [sorted(needed.difference(names_in(entry))) for entry in entries]
        if all(lacking):
            raise CheckpointError(f"{lacking[0][0]}: no single rank has saved it with the rest of {key}")
        return entries[lacking.index([])]

    def _entries(self, key: str) -> list[Nested]:
        return [head.tree[key] for head in self._heads if key in head.tree]

    def of_module(self, key: str, name: str) -> Nested:
        """What any rank has saved under that name in a module's state. Raises `CheckpointError`."""
        for entry in self._entries(key):
            if name in entry:
                return entry[name]
        raise CheckpointError(f"checkpoint has no {key}.{name}")

    def optimizer(self, key: str) -> SavedOptimizer:
        """State of all parameters that any of the ranks has it of."""
        found = SavedOptimizer(groups=self.entry(key)["param_groups"])
        for head in self._heads:
            if key in head.tree:
                _add_optimizer(found, key, head)
        return found

    def for_parts(self, key: str) -> Nested:
        """The entry for what reads its tensors by itself, by names below `key`.

        An optimizer's is a `SavedOptimizer`.
        """
        entry = self.entry(key)
        if not isinstance(entry, Mapping) or not {"state", "param_groups"} <= entry.keys():
            return _below(key, entry)
        found = self.optimizer(key)
        state, others, groups = (_below(key, part) for part in (found.state, found.others, found.groups))
        return dataclasses.replace(found, state=state, others=others, groups=groups)


def _named(layout: Layout, values: Sequence[Plain]) -> dict[str, Nested]:
    names = [TensorName(entry.name) for entry in layout.entries]
    tree: dict[str, Nested] = _joined(rebuild(layout.tree, names, values))
    return tree


def _joined(node: Nested) -> Nested:
    """The parts of a tensor become the tensor."""
    if isinstance(node, Mapping):
        if node and all(is_part(key) for key in node):
            return next(iter(node.values()))
        return {key: _joined(child) for key, child in node.items()}
    if isinstance(node, list | tuple):
        return type(node)(_joined(child) for child in node)
    return node


def _below(key: str, node: Nested) -> Nested:
    """The same, with names that leave out the key of the entry."""
    if isinstance(node, TensorName):
        return type(node)(node.removeprefix(f"{key}."))
    if isinstance(node, Mapping):
        return {inner: _below(key, child) for inner, child in node.items()}
    if isinstance(node, list | tuple):
        return type(node)(_below(key, child) for child in node)
    return node


def _add_optimizer(found: SavedOptimizer, key: str, head: _Head) -> None:
    states, groups = head.tree[key]["state"], head.tree[key]["param_groups"]
    by_number = any(isinstance(number, int) for number in states)
    known = {number: name for owner, number, name in head.layout.without_tensors if owner == key}
    for number, state in states.items():
        name = known.get(number) or (str(number) if isinstance(number, str) else _name_of(key, state))
        if by_number and isinstance(number, str):
            found.others.setdefault(number, state)
        elif name and (name not in found.state or len(names_in(state)) > len(names_in(found.state[name]))):
            found.state[name] = state
        elif not name and _is_empty(state):
            found.unnamed += 1
    without = {number for group in groups for number in group["params"]}.difference(states)
    found.without.update(known[number] for number in without & known.keys())
    found.unnamed += len(without - known.keys()) if by_number else max(0, len(without) - len(states))


def _is_empty(state: Nested) -> bool:
    """Whether a state says nothing, as that of an optimizer without momentum."""
    if isinstance(state, Mapping | list | tuple):
        return all(map(_is_empty, state.values() if isinstance(state, Mapping) else state))
    return state is None


def _name_of(key: str, state: Nested) -> str:
    """The parameter's name, from that of a tensor in its state. "" where there is none."""
    path, name = next(_tensors((), state), ((), ""))
    return name.removeprefix(f"{key}.state.").removesuffix("".join(f".{part}" for part in path))


def _tensors(path: tuple[str, ...], node: Nested) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(node, TensorName):
        yield path, str(node)
    elif isinstance(node, Mapping | list | tuple):
        for key, child in node.items() if isinstance(node, Mapping) else enumerate(node):
            yield from _tensors((*path, str(key)), child)
