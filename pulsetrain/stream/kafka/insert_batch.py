"""Ranges of Kafka's offsets made into inserts, each row once.

The inserts of one batch are prepared by one thread and done later by another. What a batch holds counts as
stored for the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

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
    """Ranges of offsets and their inserts, one for each range that holds readable messages."""

    ranges: Sequence[OffsetRange]
    inserts: Sequence[PreparedInsert]

    def write(self, writer: ExactlyOnceWriter, retry: Retry) -> None:
        """Do every insert, then save the row ranges."""
        for insert in self.inserts:
            retry(partial(writer.insert, insert))
        retry(writer.save_ranges)


class BatchBuilder:
    """Decodes messages and prepares their inserts. The token of an insert names its range of offsets."""

    def __init__(
        self, writer: ExactlyOnceWriter, record_of: Callable[[str], str], dead_letter: DeadLetter
    ) -> None:
        self._writer, self._record_of, self._dead_letter = writer, record_of, dead_letter

    def build(self, ranges: Sequence[OffsetRange]) -> InsertBatch:
        """The inserts of `ranges`."""
        inserts = []
        for each in ranges:
            record = self._record_of(each.partition.topic)
            batches = [b for m in each.messages if (b := self._decode(record, m)) is not None]
            if batches:
                inserts.append(self._writer.prepare(record, batches, each.token))
        return InsertBatch(ranges=ranges, inserts=inserts)

    def _decode(self, record: str, message: Message) -> Batch | None:
        """The batch of a message. One that cannot be read goes to the dead letters with the reason."""
        try:
            batch = decode(message.value or b"")
        except (CorruptData, SchemaMismatch) as error:
            self._dead_letter(message, str(error))
            return None
        if batch.record != record:
            self._dead_letter(message, f"a batch of {batch.record}")
            return None
        return batch
