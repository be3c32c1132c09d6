"""Follows a checkpoint that goes into memory first, as those of Lightning, mmengine and Ultralytics do.

`torch.save` into an `io.BytesIO` tells what is saved. The call that writes these bytes into a file tells
where. The number of bytes says that both belong together, so nothing of the checkpoint is kept here.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType
from typing import NamedTuple

from pulsetrain.collectors.rank.auto.imports import ImportWatch
from pulsetrain.collectors.rank.auto.own_saves import Write
from pulsetrain.collectors.rank.auto.wrapping import CallThen, wrap

MOST = 8
"""Saves into memory that are remembered. A script writes each into a file before it makes many others."""


class Sink(NamedTuple):
    """A method `owner.name` of `module` that writes bytes. `data`, `target`: the places of its arguments."""

    module: str
    owner: str
    name: str
    data: int
    target: int


SINKS = (
    Sink("fsspec.implementations.local", "LocalFileOpener", "write", 1, 0),
    Sink("mmengine.fileio.backends.local_backend", "LocalBackend", "put", 1, 2),
    Sink("pathlib", "Path", "write_bytes", 1, 0),
)


class MemorySaves:
    """Calls `landed(write, target)` once the bytes of a remembered write are in a file."""

    def __init__(self, landed: Callable[[Write, object], None], fault: Callable[[], None]) -> None:
        self._landed, self._fault = landed, fault
        self._waiting: deque[tuple[int, Write]] = deque(maxlen=MOST)  # with their numbers of bytes

    def install(self, imports: ImportWatch) -> None:
        """Watch the sinks that are imported, and those that will be."""
        for sink in SINKS:
            imports.when_imported(sink.module, self._watching(sink))

    def remember(self, buffer: io.BytesIO, write: Write) -> None:
        """Training state has been saved into this buffer. Raises `ValueError` for one that is closed."""
        with buffer.getbuffer() as view:
            self._waiting.append((view.nbytes, write))

    def _watching(self, sink: Sink) -> Callable[[ModuleType], None]:
        def imported(module: ModuleType) -> None:
            owner = getattr(module, sink.owner, None)
            if owner is not None:
                wrap(owner, sink.name, lambda args, _: self._begin(sink, args))

        return imported

    def _begin(self, sink: Sink, args: tuple[object, ...]) -> CallThen | None:
        """Look at a call. Arguments that are given by name are not looked at."""
        if not self._waiting or len(args) <= max(sink.data, sink.target):
            return None
        write = self._of(args[sink.data])
        target = args[sink.target]
        return (
            None
            if write is None
            else CallThen(nullcontext(), lambda: self._landed(write, target), self._fault)
        )

    def _of(self, data: object) -> Write | None:
        """Return the newest write of as many bytes."""
        if not isinstance(data, (bytes, bytearray, memoryview)):
            return None
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        return next((write for its, write in reversed(tuple(self._waiting)) if its == size), None)
