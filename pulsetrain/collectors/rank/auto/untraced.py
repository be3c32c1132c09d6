"""Keep `torch.compile` away from our hooks.

Behind a graph break Dynamo looks at every Python frame that is called, ours too. Compiled, a hook would be
bypassed for ever, because it does nothing while something is traced. A mark on its code says: run it as it
is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def wrapper(function: F) -> F:
    """Mark a function that calls the script's code. What it calls is looked at as before."""
    return _mark(function, inside=False)


def hook(function: F) -> F:
    """Mark a function that calls nothing of the script's. What it calls is left alone too."""
    return _mark(function, inside=True)


def _mark(function: F, *, inside: bool) -> F:
    """Where this torch has no such mark, the function stays as it is."""
    try:
        from torch._C._dynamo.eval_frame import (
            _FrameAction,
            _FrameExecStrategy,
            set_code_exec_strategy,
        )

        after = _FrameAction.SKIP if inside else _FrameAction.DEFAULT
        set_code_exec_strategy(function.__code__, _FrameExecStrategy(_FrameAction.SKIP, after))
    except (ImportError, AttributeError, TypeError):
        pass
    return function
