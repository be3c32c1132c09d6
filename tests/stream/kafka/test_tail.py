"""Rows as they pass, as many as are asked for, and nothing taken from the ingest."""

from __future__ import annotations

import ast
import itertools
import subprocess
import sys

import pytest
from kafka import errors

from pulsetrain.core.errors import Unavailable, UsageError
from pulsetrain.records.batch import encode
from pulsetrain.stream.kafka import tail
from pulsetrain.stream.kafka.client import KafkaConfig
from pulsetrain.stream.kafka.tail import tail_rows
from tests.stream.kafka.fakes import message
from tests.stream.rows import table


class Consumer:
    """Stands in for the client's consumer: messages, then an error."""

    def __init__(self, *topics, **options):
        self.topics, self.options = topics, options
        self.closed = False
        self.read = 0

    def __iter__(self):
        for each in self.messages:
            self.read += 1
            yield each
        raise errors.KafkaConnectionError("gone")

    def close(self):
        self.closed = True


@pytest.fixture
def consumers(monkeypatch):
    """The consumers that were made."""
    made = []

    def make(*topics, **options):
        made.append(Consumer(*topics, **options))
        return made[-1]

    Consumer.messages = [
        message(0, steps(0)),
        message(1, b"garbage"),
        message(2, steps(2)),
        message(3, steps(4)),
    ]
    monkeypatch.setattr(tail, "KafkaConsumer", make)
    return made


def steps(first):
    return encode("steps", table("steps", 2, step=[first, first + 1]), source="n/1", first_row=first)


def test_times_are_text_and_need_no_pandas(consumers):
    rows = """
import importlib.abc, sys
class NoPandas(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "pandas":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, NoPandas())
import pyarrow as pa
from pulsetrain.stream.kafka.tail import _plain
times = pa.array([1_700_000_000_123_456_789, None], pa.timestamp("ns", tz="UTC"))
print(_plain(pa.table({"ts": times, "step": [1, 2]})).to_pylist())
"""
    done = subprocess.run([sys.executable, "-c", rows], capture_output=True, text=True, check=True)
    first, second = ast.literal_eval(done.stdout)
    assert first == {"ts": "2023-11-14 22:13:20.123456789+00:00", "step": 1}
    assert second == {"ts": None, "step": 2}


@pytest.mark.parametrize(("limit", "read"), [(1, 1), (2, 1), (3, 3), (4, 3)])
def test_it_ends_after_so_many_rows_and_waits_for_no_more(consumers, limit, read):
    rows = list(tail_rows("steps", KafkaConfig(prefix="p."), limit, from_start=True))
    assert [row["step"] for row in rows] == list(range(limit))
    assert (consumers[0].read, consumers[0].closed) == (read, True)


def test_no_rows_ask_for_no_message(consumers):
    assert list(tail_rows("steps", KafkaConfig(), 0, from_start=True)) == []
    assert consumers[0].read == 0


def test_without_a_limit_it_goes_on_until_the_brokers_fail(consumers):
    rows = tail_rows("steps", KafkaConfig(), None, from_start=False)
    assert len(list(itertools.islice(rows, 6))) == 6
    with pytest.raises(Unavailable, match="does not answer"):
        next(rows)
    assert consumers[0].closed


@pytest.mark.parametrize(("from_start", "where"), [(True, "earliest"), (False, "latest")])
def test_it_belongs_to_no_group_and_begins_where_it_is_told(consumers, from_start, where):
    list(tail_rows("steps", KafkaConfig(prefix="p."), 1, from_start=from_start))
    assert consumers[0].topics == ("p.steps",)
    assert consumers[0].options["auto_offset_reset"] == where
    assert "group_id" not in consumers[0].options


def test_an_unknown_record_is_named(consumers):
    with pytest.raises(UsageError, match=r"unknown record 'nonsense'; allowed: .*spans"):
        next(tail_rows("nonsense", KafkaConfig(), None, from_start=True))
