"""Ranges of Kafka's offsets made into inserts, each row once.

The inserts of one batch are prepared by one thread and done later by another. What a batch holds counts as
stored for the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pulsetrain.core.errors import CorruptData, SchemaMismatch
from pulsetrain.records.batch import Batch, decode
from pulsetrain.stream.kafka.partition_buffer import Message, OffsetRange
from pulsetrain.stream.store.exactly_once import ExactlyOnceWriter, PreparedInsert

DeadLetter = Callable[[Message, str], None]
"""Sends a message that cannot be read to the dead letters, with the reason."""
Retry = Callable[[Callable[[], None]], None]
"""Calls a function and decides what its failure means."""


@dataclass(frozen=True, kw_only=True)
class InsertBatch:
    """Ranges of offsets and their inserts, one for each range that holds readable messages.

    `unprepared` are ranges that no single insert can hold.
    """

    ranges: Sequence[OffsetRange]
    inserts: Sequence[PreparedInsert]
    unprepared: Sequence[OffsetRange] = ()

    def write(self, writer: ExactlyOnceWriter, retry: Retry) -> Sequence[OffsetRange]:
        """Do every insert, then save the row ranges. Returns the ranges whose rows the store refuses."""
        refused = [*self.unprepared]
        for insert in self.inserts:
            if why_refused(writer, insert, retry):
                refused += (each for each in self.ranges if each.token == insert.group.token)
        retry(writer.save_ranges)
        return refused


def why_refused(writer: ExactlyOnceWriter, insert: PreparedInsert, retry: Retry) -> str:
    """Do an insert. Returns why the store will never take its rows, "" where it took them."""
    why = ""

    def act() -> None:
        nonlocal why
        try:
            writer.insert(insert)
        except SchemaMismatch as error:
            why = str(error)

    retry(act)
    return why


class BatchBuilder:
    """Decodes messages and prepares their inserts. The token of an insert is that of its range."""

    def __init__(
        self, writer: ExactlyOnceWriter, record_of: Callable[[str], str], dead_letter: DeadLetter
    ) -> None:
        self._writer, self._record_of, self._dead_letter = writer, record_of, dead_letter

    def build(self, ranges: Sequence[OffsetRange]) -> InsertBatch:
        """The inserts of `ranges`."""
        inserts, unprepared = [], []
        for each in ranges:
            record = self._record_of(each.partition.topic)
            batches = [b for m in each.messages if (b := self._decode(record, m)) is not None]
            if not batches:
                continue
            try:
                inserts.append(self._writer.prepare(record, batches, each.token))
            except SchemaMismatch:
                unprepared.append(each)
        return InsertBatch(ranges=ranges, inserts=inserts, unprepared=unprepared)

    def store_parts(self, refused: OffsetRange, retry: Retry) -> None:
        """Store what the store takes of a range that it refused as a whole.

        Halves are tried until single messages are refused, which go to the dead letters. A part has the
        token of its own range. What is stored of a part is saved before the next one.
        """
        record = self._record_of(refused.partition.topic)
        middle = len(refused.messages) // 2
        for messages in (refused.messages[:middle], refused.messages[middle:]):
            part = OffsetRange(refused.partition, messages)
            batches = [b for m in messages if isinstance(b := _read(record, m), Batch)]
            if not batches:
                continue  # what cannot be read is a dead letter since the range was built
            why = self._why_not_stored(record, batches, part.token, retry)
            if why and len(messages) > 1:
                self.store_parts(part, retry)
            elif why:
                self._dead_letter(messages[0], why)

    def _why_not_stored(self, record: str, batches: Sequence[Batch], token: str, retry: Retry) -> str:
        """Store batches by one insert. Returns why that can never be done, "" where it is."""
        try:
            insert = self._writer.prepare(record, batches, token)
        except SchemaMismatch as error:
            return str(error)
        why = why_refused(self._writer, insert, retry)
        if why:
            self._writer.discard(insert)
        else:
            retry(self._writer.save_ranges)
        return why

    def _decode(self, record: str, message: Message) -> Batch | None:
        """The batch of a message. One that cannot be read goes to the dead letters with the reason."""
        batch = _read(record, message)
        if isinstance(batch, Batch):
            return batch
        self._dead_letter(message, batch)
        return None


def _read(record: str, message: Message) -> Batch | str:
    """The batch of a message, or why it cannot be read."""
    try:
        batch = decode(message.value or b"")
    except (CorruptData, SchemaMismatch) as error:
        return str(error)
    return batch if batch.record == record else f"a batch of {batch.record}"
