"""A handle on a ring of its own, and the reader of that ring."""

from __future__ import annotations

import os

from pulsetrain.collectors.rank.handle import Handle
from pulsetrain.collectors.rank.ring import RingWriter, create_ring
from pulsetrain.collectors.reading.ring_reader import RingReader


class Watched:
    """Both ends of a rank's ring in one process."""

    def __init__(self, slots: int = 1024) -> None:
        fd = create_ring(slots)
        self.handle, self.reader = Handle(RingWriter(fd)), RingReader(fd)
        os.close(fd)

    def spans(self) -> list[tuple[str, str]]:
        """(phase, parent) of what ended since the last call."""
        names = self.reader.names
        return [(names[s["name"]], names[s["parent"]]) for s in self.reader.drain()[0]]

    def open(self) -> list[str]:
        return [phase.name for phase in self.reader.status().stack]

    @property
    def errors(self) -> int:
        return self.reader.status().errors
