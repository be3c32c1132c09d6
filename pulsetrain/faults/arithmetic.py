"""Matrix products that are really wrong: while a file is there, one element of every n-th product.

A processor with a worn-out unit computes wrongly now and then, and nothing else shows it.
"""

from __future__ import annotations

import functools
import importlib.abc
import itertools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

ENVIRONMENT = "PULSETRAIN_ARITHMETIC_FAULT"
"""Path of a file. While it is there, every so many-th product is wrong as its number says."""


def install(environ: Mapping[str, str] = os.environ) -> bool:
    """Obey the file that the environment names, once torch is imported. Whether there is one to obey."""
    named = environ.get(ENVIRONMENT, "")
    if named:
        sys.meta_path.insert(0, _AfterTorch(lambda: damage(Path(named))))
    return bool(named)


def begin(file: Path, every: int = 1) -> None:
    """Begin the fault that `file` stands for. Remove the file to end it."""
    file.write_text(f"{every}")


def damage(file: Path) -> Callable[[], None]:
    """Make products of this process obey `file`. Returns what takes that back."""
    import torch

    owner: Any = torch.Tensor
    original, numbers = owner.__matmul__, itertools.count(1)

    @functools.wraps(original)
    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = original(a, b)
        if file.exists() and next(numbers) % int(file.read_text()) == 0:
            result.view(-1)[0] += 1
        return result

    owner.__matmul__ = product
    return functools.partial(setattr, owner, "__matmul__", original)


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Calls something as soon as torch is imported."""

    def __init__(self, then: Callable[[], object]) -> None:
        self._then = then

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of torch as everybody else finds it, with a loader that calls `then`."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_call(module: ModuleType) -> None:
                load(module)
                self._then()

            spec.loader.exec_module = load_and_call  # type: ignore[method-assign]
        return spec
