"""What waits of each Kafka partition, and which of it the next insert holds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import structlog
from kafka import TopicPartition

from pulsetrain.core.errors import CorruptData
from pulsetrain.records.ipc_size import unpacked_bytes

log = structlog.get_logger()

MOST_BYTES = 32 << 20
"""Bytes of messages that one insert takes of a partition, as they come."""
MOST_UNPACKED_BYTES = 256 << 20
"""Bytes that they may need unpacked: compressed texts may be 50 times as large. The hub's inserts have this
bound too."""
_ANNOUNCED = "to "
_DIGITS = 18  # more rows than any message has


class Message(Protocol):
    """A message as the Kafka client delivers it. `timestamp` is UTC milliseconds, -1 or None if unknown.

    Anybody may have produced it: a header may have no value.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] | None


@dataclass(frozen=True)
class OffsetRange:
    """The offsets [start, end) of one partition and their messages. There is at least one message."""

    partition: TopicPartition
    messages: Sequence[Message]

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

    @cached_property
    def token(self) -> str:
        """The deduplication token of this range's insert: its offsets and a digest of its messages.

        Offsets come again with other rows, as when a topic is made anew. A range that is repeated has the
        same messages.
        """
        digest = hashlib.blake2b(digest_size=8)
        for message in self.messages:
            value = message.value or b""
            digest.update(len(value).to_bytes(8, "big") + value)
        where = f"{self.partition.topic}:{self.partition.partition}:{self.start}-{self.end}"
        return f"{where}:{digest.hexdigest()}"

    @property
    def announcement(self) -> str:
        """Metadata of the commit that announces this range's insert."""
        return f"{_ANNOUNCED}{self.end}"


@dataclass(kw_only=True)
class PartitionBuffer:
    """What waits of one partition. `repeat_until` ends a range that must be repeated as it was; -1: none.

    `repeat_from` is where that range begins; -1: not known.
    """

    repeat_from: int = -1
    repeat_until: int = -1
    rows: int = 0
    since_s: float = 0.0
    messages: list[Message] = field(default_factory=list)

    def add(self, messages: Sequence[Message], now_s: float) -> None:
        """Add messages that follow what waits."""
        if not self.messages:
            self.since_s = now_s
        self.messages.extend(messages)
        self.rows += sum(map(rows_of, messages))

    def ready(self, rows: int) -> list[Message]:
        """The messages of the next insert: a range to repeat alone and whole, else about `rows` rows.

        A range is whole where its last message is here, or any message behind it: what is not here by then
        was compacted away.
        """
        if self.repeat_until < 0 or (self.messages and self.messages[0].offset >= self.repeat_until):
            return self._first(rows)  # nothing to repeat, or the broker has already forgotten it
        inside = [m for m in self.messages if m.offset < self.repeat_until]
        whole = bool(self.messages) and self.messages[-1].offset >= self.repeat_until - 1
        return inside if whole else []

    def take(self, messages: Sequence[Message], now_s: float) -> None:
        """Remove the first messages, which are on their way to the store."""
        self._tell_of_gone(messages)
        del self.messages[: len(messages)]
        self.rows -= sum(map(rows_of, messages))
        self.since_s = now_s
        self.repeat_until = -1

    def put_back(self, messages: Sequence[Message]) -> None:
        """Return messages that were taken and are not on their way. They may have been announced."""
        self.repeat_from, self.repeat_until = -1, int(messages[-1].offset) + 1
        self.messages[:0] = messages
        self.rows += sum(map(rows_of, messages))

    def _tell_of_gone(self, messages: Sequence[Message]) -> None:
        """Say so where Kafka has deleted some of an announced range before it was repeated.

        What is left has another token. If the range's insert has happened, and its row ranges were not saved,
        these rows are stored twice. If it has not, the rows of the deleted messages are missing.
        """
        if min(self.repeat_from, self.repeat_until) < 0:
            return
        left = sum(message.offset < self.repeat_until for message in messages)
        gone = self.repeat_until - self.repeat_from - left
        if gone > 0:
            log.warning(
                "announced_messages_gone",
                topic=messages[0].topic,
                partition=messages[0].partition,
                first=self.repeat_from,
                end=self.repeat_until,
                gone=gone,
                rows_maybe_twice=sum(rows_of(m) for m in messages if m.offset < self.repeat_until),
            )

    def _first(self, rows: int) -> list[Message]:
        """As many messages as hold `rows` rows: what is inserted at once is what memory is needed for.

        Of long texts there are fewer: `MOST_BYTES`, `MOST_UNPACKED_BYTES`. The first message is always taken.
        """
        taken: list[Message] = []
        held = size = unpacked = 0
        for message in self.messages:
            if taken and (held >= rows or size >= MOST_BYTES):
                break
            unpacked += _unpacked(message)
            if taken and unpacked > MOST_UNPACKED_BYTES:
                break
            taken.append(message)
            held, size = held + rows_of(message), size + len(message.value or b"")
        return taken


def due(
    buffers: Mapping[TopicPartition, PartitionBuffer], now_s: float, *, rows: int, linger_s: float
) -> list[OffsetRange]:
    """What the next insert batch holds: of buffers that hold `rows` rows or have waited `linger_s`.

    The longest wait goes first, until about `rows` rows or `MOST_UNPACKED_BYTES` are together.
    """
    waiting = sorted(
        ((p, b) for p, b in buffers.items() if b.rows >= rows or now_s - b.since_s >= linger_s),
        key=lambda item: item[1].since_s,
    )
    taken: list[OffsetRange] = []
    together = unpacked = 0
    for partition, buffer in waiting:
        messages = buffer.ready(rows - together if buffer.repeat_until < 0 else rows)
        if messages:
            taken.append(OffsetRange(partition, messages))
            together += taken[-1].rows
            unpacked += sum(map(_unpacked, messages))
        if together >= rows or unpacked >= MOST_UNPACKED_BYTES:
            break
    return taken


def announced_end(metadata: object) -> int:
    """Where the range ends that a commit announced; -1: it announced none."""
    text = str(metadata or "")
    return int(text.removeprefix(_ANNOUNCED)) if text.startswith(_ANNOUNCED) else -1


def rows_of(message: Message) -> int:
    """How many rows a message says it holds; 1 for one that does not say."""
    stated = dict(message.headers or []).get("rows") or b""
    return int(stated) if stated.isdigit() and len(stated) <= _DIGITS else 1


def _unpacked(message: Message) -> int:
    """Bytes of a message without its compression. One that cannot be read counts as it is."""
    value = message.value or b""
    try:
        return unpacked_bytes(value)
    except CorruptData:
        return len(value)


def oldest_age_s(waiting: Iterable[Sequence[Message]], now_ns: int) -> float:
    """How long ago the first message of any of the sequences was sent. 0 where no message tells."""
    sent_ms = [messages[0].timestamp or 0 for messages in waiting if messages]
    known = [ms for ms in sent_ms if ms > 0]
    return max(0.0, now_ns / 1e9 - min(known) / 1e3) if known else 0.0
