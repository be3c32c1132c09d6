"""Call a function of ours after one of somebody else's has returned."""

from __future__ import annotations

import functools
from collections.abc import Callable

from pulsetrain.collectors.rank.auto import untraced


def call_after(owner: object, name: str, function: Callable[..., None], fault: Callable[[], None]) -> None:
    """Replace `owner.name` by itself followed by ``function(result, *args, **kwargs)``.

    What `function` raises goes to `fault`. While torch.compile traces, only the original is called. Raises
    `AttributeError` if there is no such name.
    """
    import torch

    is_compiling = torch.compiler.is_compiling
    original: Callable[..., object] = getattr(owner, name)

    untraced.hook(function)

    @functools.wraps(original)
    @untraced.wrapper
    def wrapped(*args: object, **kwargs: object) -> object:
        result = original(*args, **kwargs)
        if not is_compiling():
            try:
                function(result, *args, **kwargs)
            except Exception:  # noqa: BLE001 - the call succeeded; what fails after it is ours
                fault()
        return result

    setattr(owner, name, wrapped)
