"""Whether a main thread waits for another thread of its own program, which may work or wait itself. Pure.

A main thread in `future.result()` or `thread.join()` uses nothing and moves nothing, for as long as the other
thread takes: one that tries a download again sleeps for minutes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pulsetrain.analytics.hangs.stacks import MAIN

_WAITS = re.compile(
    r"^(?!(?:\S+\.)?run )\S+ \((?:[^()]*/)?(?:(?:threading|queue|selectors)|futures/(?:_base|thread|process)"
    r"|multiprocessing/(?:connection|queues|pool|resource_tracker|forkserver))\.py:"
)
"""Python's own code in which a thread waits for others. A worker without work stands there too. One in `run`
has called what is no Python."""
_OURS = "pulsetrain/"


def helper(threads: Iterable[tuple[str, Sequence[str]]], place: str = "") -> str:
    """Return a thread of `threads`, by name, that the main one may wait for. "" for none.

    Several threads may have one name. Threads of child processes are among them. A frame is "function
    (folder/file.py:line)", outermost first. Where all threads wait for each other, that is a deadlock and no
    pause.

    >>> main = ["main (train.py:5)", "result (futures/_base.py:451)", "wait (python3.11/threading.py:327)"]
    >>> idle = ("pool_N", ["_worker (futures/thread.py:83)"])
    >>> busy = ("pool_N", ["_worker (futures/thread.py:58)", "fetch (data.py:7)"])
    >>> helper([("MainThread", main), idle, busy])
    'pool_N'
    >>> helper([("MainThread", main), idle])
    ''
    """
    pairs = list(threads)
    main = next((frames for name, frames in pairs if name == MAIN), ())
    if not is_locked(main, place):
        return ""
    return next((name for name, frames in pairs if name != MAIN and _is_busy(frames)), "")


def is_locked(main: Sequence[str], place: str = "") -> bool:
    """Return whether a main thread may wait for a lock of Python's own.

    `place` is the innermost frame of the user's own code. Where the main thread stands in that, it may be in
    a call that is no Python, such as `lock.acquire()` or `SimpleQueue.get()`. What a library calls may wait
    for anything.
    """
    return bool(main) and (_WAITS.search(main[-1]) is not None or main[-1] == place)


def _is_busy(frames: Sequence[str]) -> bool:
    return bool(frames) and not _WAITS.search(frames[-1]) and not any(_OURS in frame for frame in frames)
