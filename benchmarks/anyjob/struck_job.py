"""Run a script of somebody else with planned faults inside, without a change to it.

    struck_job.py SCRIPT [args...]

Steps are counted by the calls of its first optimizer. Points: ``data`` where a batch is made, else before the
first module of a step, ``forward`` before the first module, ``optimizer`` before an optimizer's step,
``gradient`` for the first gradient there. The plan is in `PULSETRAIN_FAULTS`, see `pulsetrain.faults.inside`.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from pulsetrain.faults.inside import Injector


class Points:
    """Tells the injector when the script reaches a point of a step."""

    def __init__(self, faults: Injector) -> None:
        self._faults = faults
        self._step = 0
        self._optimizer = 0

    def install(self) -> None:
        """Hook into the data, and into every module and optimizer of this process."""
        gpt = importlib.import_module("gpt")  # as the scripts import it
        original = gpt.Corpus.batch

        def batch(*args: Any, **more: Any) -> Any:
            self._faults.at(self._step, "data")
            return original(*args, **more)

        gpt.Corpus.batch = batch  # type: ignore[attr-defined]
        register_module_forward_pre_hook(self._before_module)
        register_optimizer_step_pre_hook(self._before_optimizer)
        register_optimizer_step_post_hook(self._after_optimizer)

    def _before_module(self, module: Any, inputs: Any) -> None:
        self._faults.at(self._step, "data")
        self._faults.at(self._step, "forward")

    def _before_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._optimizer = self._optimizer or id(optimizer)
        if id(optimizer) != self._optimizer:
            return
        self._faults.at(self._step, "optimizer")
        gradient = next(
            (p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None), None
        )
        if gradient is not None:
            local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
            with torch.no_grad():
                self._faults.value(self._step, local, "gradient")

    def _after_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._step += id(optimizer) == self._optimizer


def main() -> None:
    """Run the script that the command line names."""
    del sys.argv[0]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    Points(Injector.from_environ()).install()
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
