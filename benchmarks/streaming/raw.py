"""The raw limit: decoding and inserting the same batches without Kafka."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kafka import TopicPartition
from kafka.consumer.fetcher import ConsumerRecord

from pulsetrain.core.clock import SystemClock
from pulsetrain.records.batch import identify
from pulsetrain.stream.ingest_metrics import IngestMetrics
from pulsetrain.stream.kafka.insert_batch import BatchBuilder
from pulsetrain.stream.kafka.partition_buffer import OffsetRange
from pulsetrain.stream.kafka.transport import headers_of
from pulsetrain.stream.store.clickhouse import open_store
from pulsetrain.stream.store.exactly_once import ExactlyOnceWriter
from streaming.messages import Message
from streaming.processes import INGEST_ROWS


def raw_limit(made: Sequence[Message], folder: Path, seconds: float, result: Any) -> None:
    """Rows/s of decoding and inserting the same batches without Kafka, in a process of its own."""
    store = open_store(f"chdb://{folder}")
    store.migrate()
    writer = ExactlyOnceWriter(store, SystemClock(), IngestMetrics())
    builder = BatchBuilder(writer, lambda _: "spans", _unreadable)
    rows, began = 0, time.perf_counter()
    in_flight: Future[None] | None = None
    with ThreadPoolExecutor(1) as executor:
        for each in _ranges(made):
            batch = builder.build([each])
            if in_flight is not None:
                in_flight.result()
            rows += each.rows
            in_flight = executor.submit(batch.write, writer, _call)
            if time.perf_counter() - began >= seconds:
                break
    result.put((rows, time.perf_counter() - began))
    store.close()


def _call(act: Callable[[], None]) -> None:
    act()


def _unreadable(_message: Any, reason: str) -> None:
    raise AssertionError(reason)


def _ranges(made: Sequence[Message]) -> Iterator[OffsetRange]:
    """The messages over and over, as ingest would take them from one partition."""
    offset = 0
    for number in itertools.count():
        group: list[Any] = []
        for message in made:
            group.append(_record(offset, message, number))
            offset += 1
            if sum(int(dict(m.headers)["rows"]) for m in group) >= INGEST_ROWS:
                yield OffsetRange(TopicPartition("raw", 0), group)
                group = []
        if group:
            yield OffsetRange(TopicPartition("raw", 0), group)


def _record(offset: int, message: Message, number: int) -> ConsumerRecord:
    data = message.of_pass(number)
    headers = headers_of(identify(data))
    return ConsumerRecord("raw", 0, -1, offset, 0, 0, None, data, headers, None, 0, len(data), 0)
