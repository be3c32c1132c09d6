"""Which framework runs the training, with its version: `transformers 5.23.0, accelerate 1.15.0`.

A framework is in use once its trainer, engine or parallel state is made. An import alone says nothing: many
frameworks import each other.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from pulsetrain.collectors.rank.auto.after import call_after

if TYPE_CHECKING:
    from pulsetrain.collectors.rank.auto.context import Auto

ENTRY = "framework"


class Entrance(NamedTuple):
    """What a job that uses a framework calls: `owner.name` of `module`, without an owner of the module."""

    package: str
    module: str
    owner: str
    name: str


ENTRANCES = (  # those that drive others come first, and are named first
    Entrance("torchtitan", "torchtitan.distributed.parallel_dims", "ParallelDims", "__post_init__"),
    Entrance("transformers", "transformers.trainer", "Trainer", "__init__"),
    Entrance("lightning", "lightning.pytorch.trainer.trainer", "Trainer", "__init__"),
    Entrance("lightning", "lightning.fabric.fabric", "Fabric", "__init__"),
    Entrance("pytorch-lightning", "pytorch_lightning.trainer.trainer", "Trainer", "__init__"),
    Entrance("accelerate", "accelerate.accelerator", "Accelerator", "__init__"),
    Entrance("deepspeed", "deepspeed.runtime.engine", "DeepSpeedEngine", "__init__"),
    Entrance("megatron-core", "megatron.core.parallel_state", "", "initialize_model_parallel"),
)


class Frameworks:
    """The frameworks in use."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._names: dict[str, str] = {}

    def note(self, package: str) -> None:
        """Note that a package is in use, and show all."""
        if package not in self._names:
            self._names[package] = named(package)
            order = dict.fromkeys(entrance.package for entrance in ENTRANCES)
            self._show(", ".join(self._names[name] for name in order if name in self._names))


def named(package: str) -> str:
    """Return the package's name and version, the name alone if nothing says its version.

    >>> named("no-such-package")
    'no-such-package'
    """
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return package


def install(auto: Auto) -> None:
    """Watch for every framework. None is imported for it."""

    def show(text: str) -> None:
        if auto.handle.active:  # a forked child leaves the ring to its parent
            auto.description.set(ENTRY, text)

    frameworks = Frameworks(show)
    for entrance in ENTRANCES:
        auto.imports.when_imported(entrance.module, _watch(entrance, frameworks, auto.handle.fault))


def _watch(
    entrance: Entrance, frameworks: Frameworks, fault: Callable[[], None]
) -> Callable[[ModuleType], None]:
    def imported(module: ModuleType) -> None:
        owner = getattr(module, entrance.owner) if entrance.owner else module
        call_after(owner, entrance.name, lambda *_, **__: frameworks.note(entrance.package), fault)

    return imported
