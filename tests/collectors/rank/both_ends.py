"""Both ends of a small ring."""

from __future__ import annotations

import os

from pulsetrain.collectors.layout import span_context, span_head
from pulsetrain.collectors.rank.ring import RingWriter, create_ring
from pulsetrain.collectors.reading.ring_reader import RingReader

CAPACITY = 64


class Ring:
    """Both ends of a small ring; spans carry a number of their own in `seq` and again in `bytes`."""

    def __init__(self, slots: int = CAPACITY) -> None:
        self.fd = create_ring(slots)
        self.writer, self.reader = RingWriter(self.fd), RingReader(self.fd)
        os.close(self.fd)
        self.head = span_head(self.writer.intern("forward"), 0)

    def write(self, number: int) -> bool:
        context = span_context(number, -1, 0)
        return self.writer.span(self.head, context, 1 + number, 2 + number, seq=number, size=number)

    def drained(self, *, final: bool = False, patience: int = 8) -> list[int]:
        spans, _ = self.reader.drain(final=final, patience=patience)
        assert (spans["seq"] == spans["bytes"]).all()
        assert (spans["seq"] + 1 == spans["start"]).all()
        return [int(n) for n in spans["seq"]]
