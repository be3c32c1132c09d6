"""An ending signal as `KeyboardInterrupt`, once, and never lost."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGAIN_S = 0.05


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """The first ending signal raises `KeyboardInterrupt`; further ones must not disturb the clearing up.

    Python swallows an exception raised inside a finaliser or a weak reference's callback; one that was
    swallowed is raised again a moment later.
    """
    before = {number: signal.getsignal(number) for number in END_SIGNALS}
    report = sys.unraisablehook

    def interrupt(_: int, __: FrameType | None) -> None:
        for number in END_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    def arm() -> None:
        for number in END_SIGNALS:
            signal.signal(number, interrupt)

    def swallowed(lost: sys.UnraisableHookArgs) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            report(lost)
            return
        signal.signal(signal.SIGINT, interrupt)
        threading.Timer(AGAIN_S, os.kill, (os.getpid(), signal.SIGINT)).start()

    arm()
    sys.unraisablehook = swallowed
    try:
        yield
    finally:
        sys.unraisablehook = report
        for number, handler in before.items():
            signal.signal(number, handler)
