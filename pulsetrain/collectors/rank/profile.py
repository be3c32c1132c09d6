"""Profiles some steps of a running script with torch.profiler, when the agent asks for it through the ring.

The script needs no change. While nobody asks, a step costs one look at one word.
"""

from __future__ import annotations

import os
from collections.abc import Callable
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

    torch runs one profiler at a time, and a second one would end the first. So ours never begins while the
    script's own runs, and gives way where the script begins one.
    """

    def __init__(self, prefix: str | None = None) -> None:
        self.answered = 0
        self._prefix = prefix
        self._running: profile | None = None
        self._until = 0
        self._give_back: Callable[[], None] | None = None

    def at_step(self, state: RankState) -> None:
        """A step has ended and `state.step` begins: start the profile, or end it. Never raises."""
        number = state.words[W_PROFILE]
        try:
            if self._running is not None:
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

        if torch.autograd._profiler_enabled():
            self._fail(state, number)
            return
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_initialized():
            activities.append(ProfilerActivity.CUDA)
        profiler = profile(activities=activities)
        profiler.start()
        self._running, self._until = profiler, state.step + max(1, state.words[W_PROFILE_STEPS])
        self._watch_for_another(state, number)

    def _watch_for_another(self, state: RankState, number: int) -> None:
        """Until ours has ended, end it before another profiler begins."""
        from torch.autograd import profiler as module

        prepare = module._prepare_profiler

        def give_back() -> None:
            module._prepare_profiler = prepare

        module._prepare_profiler = self._after_ours(prepare, state, number)
        self._give_back = give_back

    def _after_ours(self, prepare: Callable[P, T], state: RankState, number: int) -> Callable[P, T]:
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
            self._give_way(state, number)
            return prepare(*args, **kwargs)

        return wrapped

    def _give_way(self, state: RankState, number: int) -> None:
        try:
            profiler = self._take()
            if profiler is not None:
                profiler.stop()
        except Exception:  # noqa: BLE001 - the script's own profiler must begin
            state.fault()
        self._fail(state, number)

    def _finish(self, state: RankState, number: int) -> None:
        profiler = self._take()
        if profiler is None:
            return
        profiler.stop()
        prefix = self._prefix or os.environ[VARIABLE]
        profiler.export_chrome_trace(trace_path(prefix, number))
        self.answered = state.words[W_PROFILED] = number

    def _take(self) -> profile | None:
        """The running profile, which is about to end."""
        if self._give_back is not None:
            self._give_back()
        profiler, self._running, self._give_back = self._running, None, None
        return profiler

    def _fail(self, state: RankState, number: int) -> None:
        self._take()
        self.answered = number
        state.words[W_PROFILED] = -number
