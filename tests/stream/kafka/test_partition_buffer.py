"""What one insert batch takes from the partitions that wait."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import TopicPartition
from structlog.testing import capture_logs

from pulsetrain.records.batch import encode
from pulsetrain.stream.kafka import partition_buffer
from pulsetrain.stream.kafka.partition_buffer import (
    OffsetRange,
    PartitionBuffer,
    announced_end,
    due,
    oldest_age_s,
    rows_of,
)
from tests.stream.kafka import fakes
from tests.stream.rows import table


def message(offset, rows=10, value=b""):
    return SimpleNamespace(
        offset=offset, headers=[("rows", str(rows).encode())], value=value, topic="t", partition=0
    )


def buffer(offsets, *, repeat_until=-1, since_s=0.0, rows=10):
    made = PartitionBuffer(repeat_until=repeat_until)
    made.add([message(o, rows) for o in offsets], since_s)
    return made


def offsets(messages):
    return [m.offset for m in messages]


@given(
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=40),
    rows=st.integers(1, 1000),
)
def test_batches_take_every_message_once_in_order_and_no_more_rows_than_memory_is_for(sizes, rows):
    made, taken = PartitionBuffer(), []
    made.add([message(i, size) for i, size in enumerate(sizes)], 0.0)
    while messages := made.ready(rows):
        assert sum(sizes[m.offset] for m in messages[:-1]) < rows
        taken += offsets(messages)
        made.take(messages, 0.0)
    assert taken == list(range(len(sizes)))
    assert made.rows == 0


def test_a_range_that_was_announced_waits_until_it_is_whole_and_goes_alone():
    made = buffer([4, 5], repeat_until=7)
    assert made.ready(1000) == []
    made.add([message(6), message(7)], 1.0)
    assert offsets(made.ready(1)) == [4, 5, 6]
    made.take(made.ready(1), 1.0)
    assert offsets(made.ready(1000)) == [7]


def test_a_range_is_bounded_in_bytes_too_but_takes_a_single_message(monkeypatch):
    monkeypatch.setattr(partition_buffer, "MOST_BYTES", 5)
    made = PartitionBuffer()
    made.add([message(i, value=b"xxx") for i in range(3)] + [message(3, value=b"x" * 9)], 0.0)
    taken = []
    while messages := made.ready(1000):
        taken.append(offsets(messages))
        made.take(messages, 0.0)
    assert taken == [[0, 1], [2, 3]]


def test_a_range_is_bounded_by_what_its_messages_need_unpacked(monkeypatch):
    value = encode("logs", table("logs", 1, message="a" * 10_000), source="n", first_row=0)
    assert len(value) < 8_000  # compressed
    monkeypatch.setattr(partition_buffer, "MOST_UNPACKED_BYTES", 25_000)
    made = PartitionBuffer()
    made.add([message(i, value=value) for i in range(3)], 0.0)
    assert offsets(made.ready(1000)) == [0, 1]
    monkeypatch.setattr(partition_buffer, "MOST_UNPACKED_BYTES", 1)
    assert offsets(made.ready(1000)) == [0]
    buffers = {TopicPartition("t", i): made for i in range(3)}
    assert len(due(buffers, 9.0, rows=1000, linger_s=1.0)) == 1


def test_an_announced_range_whose_last_message_was_compacted_away_ends_at_the_next_message():
    made = buffer([4, 5, 8], repeat_until=7)
    assert offsets(made.ready(1000)) == [4, 5]
    made.take(made.ready(1000), 1.0)
    assert offsets(made.ready(1000)) == [8]


def test_an_announced_range_that_the_broker_forgot_is_not_waited_for():
    assert offsets(buffer([9, 10], repeat_until=7).ready(1000)) == [9, 10]


@pytest.mark.parametrize(
    ("there", "gone", "twice"),
    [([4, 5, 6, 7], None, 0), ([5, 6, 7], 1, 20), ([4, 6, 8], 1, 20), ([9], 3, 0)],
)
def test_it_is_told_where_kafka_has_deleted_some_of_an_announced_range(there, gone, twice):
    made = PartitionBuffer(repeat_from=4, repeat_until=7)
    made.add([message(o) for o in there], 0.0)
    with capture_logs() as logs:
        while messages := made.ready(1000):
            made.take(messages, 0.0)
    assert [(line["gone"], line["rows_maybe_twice"]) for line in logs] == ([(gone, twice)] if gone else [])


def test_what_is_put_back_goes_again_as_it_was():
    made = buffer([1, 2, 3])
    taken = made.ready(20)
    made.take(taken, 0.0)
    made.put_back(taken)
    assert offsets(made.ready(1000)) == offsets(taken) == [1, 2]
    assert made.rows == 30


def test_who_waits_longest_goes_first_and_a_batch_holds_about_so_many_rows():
    buffers = {TopicPartition("t", i): buffer(range(5), since_s=10.0 - i) for i in range(3)}
    taken = due(buffers, 20.0, rows=60, linger_s=1.0)
    assert [(r.partition.partition, len(r.messages)) for r in taken] == [(2, 5), (1, 1)]


@pytest.mark.parametrize(("now_s", "wanted"), [(0.5, 0), (1.0, 1)])
def test_a_few_rows_wait_for_more_as_long_as_they_may(now_s, wanted):
    buffers = {TopicPartition("t", 0): buffer([0])}
    assert len(due(buffers, now_s, rows=5000, linger_s=1.0)) == wanted


def test_many_rows_do_not_wait():
    assert due({TopicPartition("t", 0): buffer([0], rows=5000)}, 0.0, rows=5000, linger_s=1.0)


def test_an_announcement_is_read_back():
    each = OffsetRange(TopicPartition("t", 1), [message(3), message(4)])
    assert announced_end(each.announcement) == each.end == 5
    assert announced_end("") == announced_end(None) == -1


def test_a_range_has_the_same_token_again_and_other_messages_at_its_offsets_another():
    def token(*values):
        return OffsetRange(
            TopicPartition("t", 1), [message(3 + i, value=v) for i, v in enumerate(values)]
        ).token

    assert token(b"ab", b"c") == token(b"ab", b"c")
    assert token(b"ab", b"c").startswith("t:1:3-5:")
    assert len({token(b"ab", b"c"), token(b"a", b"bc"), token(b"ab", b"d"), token(b"ab", None)}) == 4


def test_the_age_is_that_of_the_oldest_message_that_tells_when_it_was_sent():
    sent = [fakes.message(0, b"", timestamp=5_000), fakes.message(1, b"", timestamp=1)]
    others = [[fakes.message(0, b"", timestamp=ms)] for ms in (7_000, -1, None)]
    assert oldest_age_s([sent, [], *others], 9 * 10**9) == 4.0
    assert oldest_age_s([sent], 10**9) == 0.0
    assert oldest_age_s(others[1:], 9 * 10**9) == 0.0


@pytest.mark.parametrize("stated", [None, b"", b"-1", b"two", b"9" * 5000])
def test_a_message_that_says_nonsense_of_its_rows_counts_as_one(stated):
    said = SimpleNamespace(headers=[("rows", stated)])
    assert rows_of(said) == 1
