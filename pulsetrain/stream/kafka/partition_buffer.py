"""What waits of each Kafka partition, and which of it the next insert holds."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kafka import TopicPartition

_INTENT = "to "


@dataclass(frozen=True)
class Range:
    """The offsets [start, end) of one partition and their messages."""

    partition: TopicPartition
    messages: Sequence[Any]

    @property
    def start(self) -> int:
        return int(self.messages[0].offset)

    @property
    def end(self) -> int:
        return int(self.messages[-1].offset) + 1

    @property
    def rows(self) -> int:
        """Rows that its messages say they hold."""
        return sum(map(rows_of, self.messages))

    @property
    def token(self) -> str:
        """The deduplication token of this range's insert."""
        return f"{self.partition.topic}:{self.partition.partition}:{self.start}-{self.end}"

    @property
    def intent(self) -> str:
        """Metadata of the commit that announces this range's insert."""
        return f"{_INTENT}{self.end}"


@dataclass(kw_only=True)
class PartitionBuffer:
    """What waits of one partition. `until` ends a range that must be repeated as it was; -1: none."""

    until: int = -1
    rows: int = 0
    since_s: float = 0.0
    messages: list[Any] = field(default_factory=list)

    def add(self, messages: Sequence[Any], now_s: float) -> None:
        """Messages that follow what waits."""
        if not self.messages:
            self.since_s = now_s
        self.messages.extend(messages)
        self.rows += sum(map(rows_of, messages))

    def ready(self, rows: int) -> list[Any]:
        """The messages of the next insert: a range to repeat alone and whole, else about `rows` rows."""
        if self.until < 0 or (self.messages and self.messages[0].offset >= self.until):
            return self._first(rows)  # nothing to repeat, or the broker has already forgotten it
        inside = [m for m in self.messages if m.offset < self.until]
        return inside if inside and inside[-1].offset == self.until - 1 else []

    def take(self, messages: Sequence[Any], now_s: float) -> None:
        """Forget the first messages, which are on their way to the store."""
        del self.messages[: len(messages)]
        self.rows -= sum(map(rows_of, messages))
        self.since_s = now_s
        self.until = -1

    def put_back(self, messages: Sequence[Any]) -> None:
        """Messages that were taken and are not on their way after all: they may be a range to repeat."""
        self.until = int(messages[-1].offset) + 1
        self.messages[:0] = messages
        self.rows += sum(map(rows_of, messages))

    def _first(self, rows: int) -> list[Any]:
        """As many messages as hold `rows` rows: what is inserted at once is what memory is needed for."""
        before = itertools.accumulate((rows_of(m) for m in self.messages), initial=0)
        return [m for m, held in zip(self.messages, before, strict=False) if held < rows]


def due(
    lanes: Mapping[TopicPartition, PartitionBuffer], now_s: float, *, rows: int, linger_s: float
) -> list[tuple[TopicPartition, list[Any]]]:
    """What one turn stores: lanes that hold `rows` rows or have waited `linger_s`, the longest wait first,
    until about `rows` rows are together."""
    waiting = sorted(
        ((p, lane) for p, lane in lanes.items() if lane.rows >= rows or now_s - lane.since_s >= linger_s),
        key=lambda item: item[1].since_s,
    )
    taken: list[tuple[TopicPartition, list[Any]]] = []
    together = 0
    for partition, lane in waiting:
        messages = lane.ready(rows - together if lane.until < 0 else rows)
        if messages:
            taken.append((partition, messages))
            together += sum(map(rows_of, messages))
        if together >= rows:
            break
    return taken


def announced(metadata: object) -> int:
    """Where the range ends that a commit announced; -1: it announced none."""
    text = str(metadata or "")
    return int(text.removeprefix(_INTENT)) if text.startswith(_INTENT) else -1


def rows_of(message: Any) -> int:
    """How many rows a message says it holds; 1 for one that does not say."""
    said = dict(message.headers or []).get("rows", b"")
    return int(said) if said.isdigit() else 1
