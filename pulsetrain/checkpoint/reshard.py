"""Loads a committed checkpoint into a job of another shape: other TP, PP, DP, world size, or one process.

Parameters and optimizer state are identified by their global names. Each rank reads the part that it holds
now, or gets it from a rank that reads it for several. What is not a tensor (learning rates, schedulers, data
position) comes from saved rank 0, and numbers of a parameter from the first rank that had it. Random
generators stay as they are, because they belong to ranks of the old shape.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist

from pulsetrain.checkpoint.in_place import InPlace
from pulsetrain.checkpoint.memory import layout as layouts
from pulsetrain.checkpoint.optimizers import optimizer_parameters, possible_names
from pulsetrain.checkpoint.resharding.reading_ranks import ReadingRanks, exchange
from pulsetrain.checkpoint.resharding.saved_tensors import naming_ranks
from pulsetrain.checkpoint.saved_state import (
    Kind,
    SavedState,
    fill,
    fill_as,
    like_live,
    like_parameter,
    live_tensors,
    with_tensors,
)
from pulsetrain.checkpoint.saved_trees import SavedTrees
from pulsetrain.checkpoint.state_restore import copied_names, extra_names, load_by_itself, load_object
from pulsetrain.checkpoint.storage.backend import open_storage
from pulsetrain.checkpoint.storage.manifest import Checkpoints, Manifest, Segment
from pulsetrain.checkpoint.storage.tensor_index import TensorIndex, beginnings
from pulsetrain.core.errors import CheckpointError
from pulsetrain.core.progress import progress
from pulsetrain.elastic.element_types import keep_types, settings_like
from pulsetrain.elastic.saved_optimizer import SavedOptimizer

_WHOLE_OBJECTS = (torch.nn.Module, torch.optim.Optimizer, torch.Tensor)


def load_resharded(
    storage: str,
    job: str,
    state: Mapping[str, object],
    *,
    step: int | None = None,
    group: dist.ProcessGroup | None = None,
    show_progress: bool = False,
    may_differ: Sequence[str] = (),
) -> tuple[int, int]:
    """Fill `state` (as `Checkpointer` takes it) from the newest committed step, or from `step`.

    With a process `group` of backend gloo, whose ranks must all call this, content that several of its ranks
    need is read by one of them and sent to the others. Returns the step and the bytes that this process read
    from storage. `show_progress` shows on standard error how far this process has come: give it on one rank.
    Of names that begin with one of `may_differ`, the first rank's part is taken where ranks have saved
    different values. So it is in objects other than modules, optimizers and tensors.

    All ranks of a group load the step that its rank 0 finds, and where one of them fails before it has
    begun to fill `state`, all raise.

    Raises `CheckpointError` where there is no such step, or a tensor that `state` needs is missing, has
    another global shape, or other values on another rank. Raises `CorruptData` for damaged bytes, and
    `UsageError` for an empty text in `may_differ`.
    """
    checkpoints = Checkpoints(open_storage(storage), job)
    others = [f"{key}." for key, value in state.items() if not isinstance(value, _WHOLE_OBJECTS)]
    may = [*beginnings(may_differ), *others]
    ranks = ReadingRanks(group)
    manifest = ranks.one(lambda: _manifest(checkpoints, step), _key, lambda key: _same(checkpoints, key))
    plans = group is not None or show_progress
    index, trees, wanted = ranks.each(
        lambda: _planned(TensorIndex(checkpoints, manifest, may_differ=may), state if plans else {})
    )
    with _shown(index, wanted) if show_progress else contextlib.nullcontext():
        if group is not None:
            exchange(index, wanted, ranks)
        load_state(index, state, trees)
    return index.manifest.step, index.bytes_read


def _planned(
    index: TensorIndex, state: Mapping[str, object]
) -> tuple[TensorIndex, SavedTrees, Mapping[str, Segment]]:
    """What `state` will read, found out without a change to it. What reads by itself is not counted."""
    trees = _trees(index)
    with index.planning() as wanted:
        load_form(index, state, trees, only_plan=True)
    return index, trees, wanted


_Key = tuple[int, tuple[int, int, int], int, str]


def _key(manifest: Manifest) -> _Key:
    """What tells a manifest from others."""
    return manifest.step, manifest.recency, manifest.edition, manifest.run


def _same(checkpoints: Checkpoints, chosen: _Key) -> Manifest:
    """The manifest that another rank has chosen, as this one reads it. Raises `CheckpointError`."""
    here = checkpoints.manifest(chosen[0])
    if here is None or _key(here) != chosen:
        raise CheckpointError(f"step {chosen[0]} is not what rank 0 reads; is the storage the same?")
    return here


@contextlib.contextmanager
def _shown(index: TensorIndex, wanted: Mapping[str, Segment]) -> Iterator[None]:
    """Show how much of what is wanted has come."""
    total = sum(segment.bytes for segment in wanted.values())
    with progress(f"Loading step {index.manifest.step}", total=total, unit="bytes") as index.report:
        yield


@runtime_checkable
class TakesParts(Protocol):
    """A part of the state that reads its tensors by itself, as those of `pulsetrain.elastic.split_state` do.

    `kinds` has what was saved below the entry's key, and `read` fills a tensor with what a name has. `saved`
    is what was saved with the names in place of tensors. Of an optimizer it is a `SavedOptimizer`.
    """

    def take_parts(
        self,
        kinds: Mapping[str, Kind],
        read: Callable[[str, torch.Tensor], None],
        saved: layouts.Nested,
    ) -> None: ...


def load_state(saved: SavedState, state: Mapping[str, object], trees: SavedTrees) -> None:
    """Fill `state`: tensors as they are sharded now, all else from one of the ranks that have saved it.

    Raises `CheckpointError` where a tensor is missing or has another global shape.
    """
    taken, in_place = load_form(saved, state, trees), InPlace(state)
    for key, value in state.items():
        part = taken[key]
        if part is value:
            continue
        if isinstance(part, ModuleForm):
            part.load_extra()
        elif hasattr(value, "load_state_dict"):
            load_object(value, part)
        else:
            state[key] = in_place.fill(value, part)  # type: ignore[index]  # numbers live in a mutable mapping


def load_form(
    saved: SavedState, state: Mapping[str, object], trees: SavedTrees, *, only_plan: bool = False
) -> dict[str, object]:
    """Fill what is filled in place: modules, optimizers, tensors, and what reads its parts by itself.

    Returns a state that is saved like `state` will be once it is loaded. In place of each object that has a
    loader of its own, and of each number, it has what is to be loaded. In place of a module with extra state
    it has a `ModuleForm`. `only_plan`: `saved` only notes what is read, and nothing is changed.
    """
    taken = dict(state)
    with torch.no_grad():
        for key, value in state.items():
            if isinstance(value, torch.optim.Optimizer):
                _load_optimizer(key, value, state, saved, trees, only_plan=only_plan)
            elif isinstance(value, torch.nn.Module):
                taken[key] = _fill_module(key, value, saved, trees, only_plan=only_plan)
            elif isinstance(value, torch.Tensor):
                fill(saved, {key: value})
            elif key not in trees:
                continue
            elif isinstance(value, TakesParts):
                if not only_plan:
                    _give_parts(key, value, saved, trees.for_parts(key))
            else:
                taken[key] = _entry(key, value, saved, trees)
    return taken


class ModuleForm(torch.nn.Module):
    """A module, whose extra state is what it is to become. Its own loader may refuse what is not read yet."""

    _of: torch.nn.Module

    def __init__(self, module: torch.nn.Module, extra: Mapping[str, layouts.Nested]) -> None:
        super().__init__()
        object.__setattr__(self, "_of", module)  # not a child of this one
        self._extra = extra

    def state_dict(self, **options: Any) -> dict[str, Any]:  # type: ignore[override]
        """That of the module, with the extra state."""
        return {**self._of.state_dict(**options), **self._extra}

    def named_parameters(self, *args: Any, **options: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Those of the module."""
        return self._of.named_parameters(*args, **options)

    def load_extra(self) -> None:
        """Give it to the module."""
        load_by_itself(self._of, self._of.state_dict(), self._extra)


def _fill_module(
    key: str, module: torch.nn.Module, saved: SavedState, trees: SavedTrees, *, only_plan: bool
) -> torch.nn.Module:
    live = module.state_dict(keep_vars=True)
    names, copies = extra_names(live), copied_names(module, live)
    fill(saved, {key: {name: value for name, value in live.items() if name not in names}})
    if copies and not only_plan:
        load_by_itself(module, live, {})
    if not names:
        return module
    tensors = live_tensors({key: {name: live[name] for name in names}})
    make = like_live(saved, tensors)
    return ModuleForm(module, {name: with_tensors(trees.of_module(key, name), make) for name in names})


def _entry(key: str, value: object, saved: SavedState, trees: SavedTrees) -> layouts.Nested:
    """What was saved of an object that is no module and no optimizer."""
    live = live_tensors({key: value}) if trees.has_tensors(key) else {}
    return with_tensors(trees.entry(key, live), like_live(saved, live))


def _trees(index: TensorIndex) -> SavedTrees:
    ranks = naming_ranks({rank: layout for rank, (layout, _) in index.layouts.items()})
    heads = (index.layouts[rank] for rank in ranks)
    return SavedTrees((layout, layouts.decode_values(values)) for layout, values in heads)


def _manifest(checkpoints: Checkpoints, step: int | None) -> Manifest:
    manifest = (
        checkpoints.manifest(step) if step is not None else next(iter(checkpoints.committed(newest=1)), None)
    )
    if manifest is None:
        have = ", ".join(str(m.step) for m in checkpoints.committed()) or "none"
        raise CheckpointError(f"job {checkpoints.job}: step {step} is not committed; committed: {have}")
    return manifest


def _give_parts(key: str, value: TakesParts, saved: SavedState, entry: layouts.Nested) -> None:
    """Let an entry read what it holds now, by the names of its tensors."""
    prefix = f"{key}."
    kinds = {name.removeprefix(prefix): k for name, k in saved.tensors.items() if name.startswith(prefix)}
    value.take_parts(kinds, lambda name, tensor: fill_as(saved, f"{key}.{name}", tensor), entry)


def _load_optimizer(
    key: str,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, object],
    index: SavedState,
    trees: SavedTrees,
    *,
    only_plan: bool,
) -> None:
    """Load state as the parameters are sharded now, and settings from one of the saved ranks."""
    saved, parameters = trees.optimizer(key), optimizer_parameters(optimizer)
    names = _saved_names(key, possible_names(state)[key], parameters, saved)
    loaded = {
        number: with_tensors(saved.state[name], like_parameter(index, parameters[number]))
        for number, name in names.items()
        if name in saved.state
    }
    others = {name: with_tensors(one, like_live(index, {})) for name, one in saved.others.items()}
    groups = _settings(key, optimizer, with_tensors(saved.groups, like_live(index, {})))
    if only_plan:
        return
    optimizer.load_state_dict({"state": {**loaded, **others}, "param_groups": groups})
    keep_types(optimizer, parameters, loaded)


def _saved_names(
    key: str,
    possible: Mapping[int, Sequence[str]],
    parameters: Sequence[torch.Tensor],
    saved: SavedOptimizer,
) -> dict[int, str]:
    """The saved name of each parameter that was saved. Raises `CheckpointError` where it is not clear."""
    found = {number: saved.name_among(names) for number, names in possible.items()}
    saved.check_missing(
        [f"{key}.{possible[n][0]}" for n, name in found.items() if not name and parameters[n].requires_grad]
    )
    owners: dict[str, int] = {}
    for number, name in found.items():
        if name and owners.setdefault(name, number) != number:
            both = " and ".join(possible[n][0] for n in (owners[name], number))
            raise CheckpointError(f"{key}.{name}: it is not clear whether it is the state of {both}")
    return {number: name for number, name in found.items() if name}


def _settings(
    key: str, optimizer: torch.optim.Optimizer, saved: Sequence[Mapping[str, layouts.Nested]]
) -> list[layouts.Nested]:
    """Parameter groups with the saved settings and the parameters of this rank."""
    live = optimizer.state_dict()["param_groups"]
    if len(saved) != len(live):
        raise CheckpointError(f"{key}: saved with {len(saved)} parameter groups, has {len(live)}")
    both = zip(live, saved, strict=True)
    return [{**group, **settings_like(group, old), "params": group["params"]} for group, old in both]
