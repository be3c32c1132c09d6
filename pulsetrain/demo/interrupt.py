"""Turns an ending signal into one `KeyboardInterrupt` that is never lost."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
RAISE_AGAIN_S = 0.05


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise `KeyboardInterrupt` on the first ending signal; ignore later ones, so that cleaning up goes on.

    Python drops an exception that is raised inside a finaliser or a weak reference's callback. An interrupt
    that was dropped is raised again a moment later.
    """
    old_handlers = {number: signal.getsignal(number) for number in END_SIGNALS}
    old_hook = sys.unraisablehook

    def interrupt(_: int, __: FrameType | None) -> None:
        for number in END_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    def arm() -> None:
        for number in END_SIGNALS:
            signal.signal(number, interrupt)

    def raise_again(lost: sys.UnraisableHookArgs) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            old_hook(lost)
            return
        signal.signal(signal.SIGINT, interrupt)
        threading.Timer(RAISE_AGAIN_S, os.kill, (os.getpid(), signal.SIGINT)).start()

    arm()
    sys.unraisablehook = raise_again
    try:
        yield
    finally:
        sys.unraisablehook = old_hook
        for number, handler in old_handlers.items():
            signal.signal(number, handler)
