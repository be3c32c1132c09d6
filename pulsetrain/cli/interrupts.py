"""Ctrl-C while modules are imported, which takes a command up to seconds."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Ctrl-C ends the process at once: nothing runs yet, and Python loses an interrupt inside an import's
    own callbacks."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
