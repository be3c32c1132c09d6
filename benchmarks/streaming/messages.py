"""Messages of a simulated fleet, encoded before and sent pass by pass."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pulsetrain.records.batch import encode
from pulsetrain.simulate.spec import FleetSpec
from pulsetrain.simulate.telemetry import telemetry

JOB = "bench-00000000"


@dataclass(frozen=True)
class Message:
    """An encoded batch and its rows."""

    data: bytes
    rows: int

    def of_pass(self, number: int) -> bytes:
        """The same rows as another job from other sources: both names stand uncompressed in the bytes."""
        return self.data.replace(JOB.encode(), f"bench-{number:08d}".encode())


def messages(rows: int, batch_rows: int) -> list[Message]:
    """About `rows` span rows of 1,024 simulated ranks, each message of one node."""
    spec = FleetSpec(ranks=1024, tp=8, pp=4, steps=10_000, job=JOB, start_ns=time.time_ns())
    made: list[Message] = []
    pending: dict[int, list[pa.Table]] = {}
    sent: dict[int, int] = {}
    total = 0
    for record, table in telemetry(spec, chunk_rows=1):
        if record != "spans":
            continue
        for node, part in _by_node(table, spec.ranks_per_node):
            pending.setdefault(node, []).append(part)
            if sum(map(len, pending[node])) >= batch_rows:
                whole = pa.concat_tables(pending.pop(node)).unify_dictionaries()
                source = f"{spec.node(node * spec.ranks_per_node)}/{JOB}"
                data = encode("spans", _compact(whole), source=source, first_row=sent.get(node, 0))
                sent[node] = sent.get(node, 0) + len(whole)
                made.append(Message(data, len(whole)))
                total += len(whole)
                if total >= rows:
                    return made
    raise AssertionError("the fleet's steps ran out")


def _by_node(table: pa.Table, ranks_per_node: int) -> Iterator[tuple[int, pa.Table]]:
    """Parts of a step's spans, which come by rank."""
    ranks = table["rank"].to_numpy() // ranks_per_node
    ends = [i for i in range(1, len(ranks)) if ranks[i] != ranks[i - 1]] if len(ranks) < 2 else _edges(ranks)
    begin = 0
    for end in [*ends, len(ranks)]:
        yield int(ranks[begin]), table.slice(begin, end - begin)
        begin = end


def _edges(values: Any) -> list[int]:
    return [int(i) + 1 for i in (values[1:] != values[:-1]).nonzero()[0]]


def _compact(table: pa.Table) -> pa.Table:
    """Dictionaries of only the names that occur, as an agent's have."""
    columns = [
        column.cast(pa.string()).dictionary_encode().cast(column.type)
        if pa.types.is_dictionary(column.type)
        else column
        for column in table.columns
    ]
    return pa.table(columns, schema=table.schema).combine_chunks()
