"""Profiles some steps of a running script with torch.profiler, when the agent asks for it through the ring.

The script needs no change. While nobody asks, a step costs one look at one word.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from pulsetrain.collectors.layout import W_PROFILE, W_PROFILE_FROM, W_PROFILE_STEPS, W_PROFILED

if TYPE_CHECKING:
    from torch.profiler import profile

    from pulsetrain.collectors.rank.phases import RankState

VARIABLE = "PULSETRAIN_PROFILE"

P = ParamSpec("P")
T = TypeVar("T")


def trace_path(prefix: str, number: int) -> str:
    """Where the trace of profile `number` is written.

    >>> trace_path("/logs/rank_3.profile", 2)
    '/logs/rank_3.profile-2.json.gz'
    """
    return f"{prefix}-{number}.json.gz"


class StepProfiler:
    """The profile that is asked for or runs. `answered` is the number of the last one that is over.

    torch runs one profiler at a time, and a second one would end the first or raise. So ours never begins
    while the script has prepared or started its own, and gives way where the script begins one.
    """

    def __init__(self) -> None:
        self.answered = 0
        self._running: profile | None = None
        self._number = self._until = 0
        self._give_up: Callable[[], None] | None = None
        self._watches = self._own = self._scripts = False

    def watch(self) -> None:
        """Notice from now on when the script uses torch's profiler. Without this call nothing is profiled."""
        from torch.autograd import profiler as module

        module._prepare_profiler = self._noticed(module._prepare_profiler, begins=True)
        module._enable_profiler = self._noticed(module._enable_profiler, begins=True)
        module._disable_profiler = self._noticed(module._disable_profiler, begins=False)
        self._watches = True

    def at_step(self, state: RankState) -> None:
        """A step has ended and `state.step` begins: start the profile, or end it. Never raises."""
        number = state.words[W_PROFILE]
        try:
            if self._running is not None and self._number != number:
                self._stop()  # nobody waits for it any more
            if state.words[W_PROFILE_STEPS] <= 0:
                self._fail(state, number)  # called off
            elif self._running is not None:
                if state.step >= self._until:
                    self._finish(state, number)
            elif state.step >= state.words[W_PROFILE_FROM]:
                self._start(state, number)
        except Exception:  # noqa: BLE001 - training goes on; the agent learns of it from the word
            self._fail(state, number)
            state.fault()

    def _start(self, state: RankState, number: int) -> None:
        import torch
        from torch.profiler import ProfilerActivity, profile

        if not self._watches or self._scripts or torch.autograd._profiler_enabled():
            self._fail(state, number)
            return
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_initialized():
            activities.append(ProfilerActivity.CUDA)
        profiler = profile(activities=activities)
        self._number, self._until = number, state.step + state.words[W_PROFILE_STEPS]
        self._give_up = lambda: self._fail(state, number)
        self._running = profiler
        with self._ours():
            profiler.start()

    def _finish(self, state: RankState, number: int) -> None:
        profiler = self._stop()
        if profiler is None:
            return
        with self._ours():
            profiler.export_chrome_trace(trace_path(os.environ[VARIABLE], number))
        self.answered = state.words[W_PROFILED] = number

    def _stop(self) -> profile | None:
        """Stop the profile that runs, and return it."""
        profiler, self._running, self._give_up = self._running, None, None
        if profiler is not None:
            with self._ours():
                profiler.stop()
        return profiler

    def _fail(self, state: RankState, number: int) -> None:
        self.answered = number
        state.words[W_PROFILED] = -number
        try:
            self._stop()
        except Exception:  # noqa: BLE001 - it had not begun, or ends twice
            state.fault()

    @contextlib.contextmanager
    def _ours(self) -> Iterator[None]:
        """Calls of torch's profiler in this block are ours."""
        self._own = True
        try:
            yield
        finally:
            self._own = False

    def _noticed(self, original: Callable[P, T], *, begins: bool) -> Callable[P, T]:
        """The same function. Called by the script it ends our profile first."""

        @functools.wraps(original)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
            if not self._own:
                if begins and self._give_up is not None:
                    self._give_up()
                self._scripts = begins
            return original(*args, **kwargs)

        return wrapped
