"""Whether a main thread waits for another thread of its own program, which may work or wait itself. Pure.

A main thread in `future.result()` or `thread.join()` uses nothing and moves nothing, for as long as the other
thread takes: one that tries a download again sleeps for minutes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pulsetrain.analytics.hangs.stacks import MAIN

_WAITS = re.compile(
    r"^(?!(?:\S+\.)?run )\S+ \((?:[^()]*/)?(?:(?:threading|queue|selectors)|futures/(?:_base|thread|process)"
    r"|multiprocessing/(?:connection|queues|pool|resource_tracker|forkserver))\.py:"
)
"""Python's own code in which a thread waits for others. A worker without work stands there too. One in `run`
has called what is no Python."""
_OURS = "pulsetrain/"


def helper(threads: Mapping[str, Sequence[str]], place: str = "") -> str:
    """Return a thread of `threads`, by name, that the main one may wait for. "" for none.

    Threads of child processes are among them. A frame is "function (folder/file.py:line)", outermost first.
    `place` is the innermost frame of the user's own code. Where the main thread stands in that, it may be in
    a call that is no Python, such as `lock.acquire()` or `SimpleQueue.get()`. Where all threads wait for each
    other, that is a deadlock and no pause.

    >>> main = ["main (train.py:5)", "result (futures/_base.py:451)", "wait (python3.11/threading.py:327)"]
    >>> helper({"MainThread": main, "pool_0": ["_worker (futures/thread.py:58)", "fetch (data.py:7)"]})
    'pool_0'
    >>> helper({"MainThread": main, "pool_0": ["_worker (futures/thread.py:83)"]})
    ''
    """
    main = threads.get(MAIN, ())
    if not main or not (_WAITS.search(main[-1]) or main[-1] == place):
        return ""
    return next((name for name, frames in threads.items() if name != MAIN and _is_busy(frames)), "")


def _is_busy(frames: Sequence[str]) -> bool:
    return bool(frames) and not _WAITS.search(frames[-1]) and not any(_OURS in frame for frame in frames)
