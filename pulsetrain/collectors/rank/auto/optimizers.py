"""Steps of optimizers, by torch's global hooks, and those that a `GradScaler` leaves out."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from pulsetrain.collectors.rank.auto import sizes, untraced, updates
from pulsetrain.collectors.rank.auto.context import Auto
from pulsetrain.collectors.rank.auto.wrapping import wrap
from pulsetrain.collectors.rank.numbers import Number

LOOK_EVERY = 16
"""steps of optimizers, and one more for each that is known: then those that step no more are looked for."""
IDLE = 50
"""An optimizer that has made no step among so many, for each one that is known, steps no more."""
STATE_DICT = "torch.distributed.checkpoint.state_dict"


def install(auto: Auto) -> None:
    """Register the hooks. torch calls them for every optimizer, whenever it was made."""
    watch = OptimizerWatch(auto)
    register_optimizer_step_pre_hook(watch.before)
    register_optimizer_step_post_hook(watch.after)
    auto.imports.when_imported(
        STATE_DICT, lambda module: wrap(module, "_init_optim_state", watch.fills_state)
    )
    scaler = torch.amp.grad_scaler.GradScaler
    scaler.step = watched_step(scaler.step, auto)  # type: ignore[method-assign]


@dataclass(frozen=True, kw_only=True)
class _Filling:
    """One call that gives an optimizer its state: no update."""

    span: AbstractContextManager[None]

    def returned(self, result: object) -> None:
        """It needs nothing."""

    def raised(self) -> None:
        """It needs nothing."""


class OptimizerWatch:
    """Tells the loop of every step. Keeps no optimizer alive."""

    def __init__(self, auto: Auto) -> None:
        self._auto = auto
        self._known: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
        """when each has stepped last, as a number of steps of all"""
        self._look_at = 0  # steps of all, after which idle ones are looked for
        self._fills_state = False

    def fills_state(self, _args: tuple[object, ...], _kwargs: Mapping[str, object]) -> _Filling:
        """torch makes an optimizer step without gradients or rates, so that there is state to load into."""
        return _Filling(span=self._filling())

    @contextlib.contextmanager
    def _filling(self) -> Iterator[None]:
        self._fills_state = True
        try:
            yield
        finally:
            self._fills_state = False

    @untraced.hook
    def before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """torch's hook before a step."""
        loop = self._auto.loop
        if torch.compiler.is_compiling() or self._fills_state:
            return
        if not loop.listens:
            self._note_engine(optimizer)
            return
        try:
            closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
            loop.begin_optimizer(id(optimizer), closure=callable(closure), role=role(optimizer))
        except Exception:  # noqa: BLE001 - the script must not see our faults
            self._auto.handle.fault()
        self._auto.handle.raise_of_hold()

    @untraced.hook
    def after(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """torch's hook after a step."""
        loop = self._auto.loop
        if torch.compiler.is_compiling() or self._fills_state or not loop.listens:
            return
        try:
            loop.end_optimizer(id(optimizer), self._look(optimizer))
        except Exception:  # noqa: BLE001 - as above
            self._auto.handle.fault()
        self._auto.handle.raise_of_hold()

    def _note_engine(self, optimizer: torch.optim.Optimizer) -> None:
        """Note a step inside the main thread's backward pass. On a GPU it runs on a thread of the engine."""
        loop = self._auto.loop
        try:
            inside = loop.in_backward and torch._C._current_graph_task_id() >= 0
            if inside and not self._auto.handle.on_main_thread:
                loop.step_in_backward()
                self._look(optimizer)
        except Exception:  # noqa: BLE001 - as above
            self._auto.handle.fault()

    def _look(self, optimizer: torch.optim.Optimizer) -> Number | None:
        """Return its count where that is wanted. Note what it trains. A step is one whatever fails here."""
        loop = self._auto.loop
        try:
            is_new, self._known[optimizer] = optimizer not in self._known, loop.ended_optimizers
            if is_new:
                self._note_sizes(optimizer)
            if loop.ended_optimizers >= self._look_at:
                self._forget_idle()
            return updates.count(optimizer) if loop.wants_count and not loop.in_backward else None
        except Exception:  # noqa: BLE001 - an optimizer of the script's own may keep anything as its state
            self._auto.handle.fault()
            return None

    def _note_sizes(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the sizes of what is trained. A script may make a new optimizer for each update."""
        loop = self._auto.loop
        if sizes.parameters([optimizer]).items() <= loop.trained.items():
            return
        self._show_sizes()

    def _show_sizes(self) -> None:
        loop = self._auto.loop
        loop.trained = sizes.parameters(self._known)
        loop.say_sizes = sizes.say_sizes(self._known)

    def _forget_idle(self) -> None:
        """Forget those that step no more: a script may train one model after the other and keep them all."""
        ended = self._auto.loop.ended_optimizers
        self._look_at = ended + LOOK_EVERY + len(self._known)
        since = ended - IDLE * len(self._known)
        idle = [optimizer for optimizer, last in list(self._known.items()) if last < since]
        for optimizer in idle:
            del self._known[optimizer]
        if idle:
            self._show_sizes()


def role(optimizer: torch.optim.Optimizer) -> object:
    """Return what a new optimizer has in common with the one in whose place a script puts it."""
    try:
        first = next((group["params"][0] for group in optimizer.param_groups if group["params"]), None)
    except Exception:  # noqa: BLE001 - an optimizer of the script's own may keep its parameters otherwise
        first = None
    return id(optimizer) if first is None else (type(optimizer).__qualname__, id(first))


def watched_step(original: Callable[..., Any], auto: Auto) -> Callable[..., Any]:
    """Return `GradScaler.step`. Where it finds infinities it calls no optimizer. The step counts still."""
    loop = auto.loop

    @untraced.hook
    def left_out(optimizer: torch.optim.Optimizer, ended: int) -> None:
        try:
            if loop.listens and loop.ended_optimizers == ended:
                loop.begin_optimizer(id(optimizer), closure=False, role=role(optimizer))
                loop.end_optimizer(id(optimizer))
        except Exception:  # noqa: BLE001 - the script must not see our faults
            auto.handle.fault()
        auto.handle.raise_of_hold()

    @functools.wraps(original)
    @untraced.wrapper
    def step(scaler: object, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(scaler, optimizer, *args, **kwargs)
        ended = loop.ended_optimizers
        result = original(scaler, optimizer, *args, **kwargs)
        left_out(optimizer, ended)
        return result

    return step
