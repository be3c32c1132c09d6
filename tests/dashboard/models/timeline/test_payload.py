"""The bytes that the canvas reads."""

from __future__ import annotations

import json
import random
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.dashboard.models.charts import DARK, LIGHT
from pulsetrain.dashboard.models.timeline.node_clocks import NodeClocks
from pulsetrain.dashboard.models.timeline.payload import MOST_BYTES, fitting, folded, payload, varints
from tests.dashboard.models.timeline.rows import NOBODY, collective, drawing, row, spans, transfer


def read(data):
    """(header, columns) as the description of the layout says. An own reading, not that of the canvas."""
    (size,) = struct.unpack("<I", data[16:20])
    header = json.loads(data[20 : 20 + size])
    at, columns = 20 + size, {}
    for name, count in header["columns"]:
        columns[name] = values = []
        for _ in range(count):
            value = shift = 0
            while True:
                byte = data[at]
                at += 1
                value |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
            values.append(value)
    assert at == len(data)
    return header, columns


def rows():
    return [
        row(1000, 500, microbatch=2, blocked_ns=40),
        collective(1200, 90, bytes=1 << 20, seq=7),
        transfer("send", 0, 1, 1400, 50, seq=2),
        transfer("recv", 1, 0, 1420, 80, seq=2),
        row(3000, 5, rank=1, step=4, open=True),
    ]


def test_the_columns_are_what_the_spans_are():
    header, columns = read(payload(drawing(*rows()), LIGHT))
    assert [(lane[0], lane[1], lane[3], lane[4]) for lane in header["lanes"]] == [
        (0, "host", 0, 1), (0, "communication", 1, 3), (1, "host", 3, 4), (1, "communication", 4, 5),
    ]  # fmt: skip
    assert header["origin"] == "1000"
    # starts count from the span before on the lane, and are folded: 0, 200, +200, 2000, 420
    assert columns["start"] == [0, 400, 400, 4000, 840]
    assert columns["duration"] == [500, 90, 50, 5, 80]
    assert columns["blocked"] == [41, 0, 0, 0, 0]
    assert columns["microbatch"] == [3, 0, 0, 0, 0]
    assert columns["look"] == [0, 0, 0, 1, 0]
    assert columns["peer"] == [0, 0, 2, 0, 1]
    assert [header["kinds"][k][0] for k in columns["kind"]] == [
        "forward",
        "all_reduce",
        "send",
        "forward",
        "recv",
    ]
    assert [columns["sizes"][k] for k in columns["size"]] == [0, 1 << 20, 0, 0, 0]
    assert [header["sections"][k][:2] for k in columns["section"]] == [[1, 3], [1, 3], [1, 3], [1, 4], [1, 3]]
    assert (columns["send"], columns["recv"]) == ([4], [4])


def test_the_same_spans_in_any_order_are_the_same_bytes():
    one = payload(drawing(*rows()), LIGHT)
    assert payload(drawing(*random.Random(4).sample(rows(), 5)), LIGHT) == one


def test_another_span_or_theme_has_another_digest():
    digests = {
        payload(drawing(*rows()), LIGHT)[:16],
        payload(drawing(*rows(), row(9000)), LIGHT)[:16],
        payload(drawing(*rows()), DARK)[:16],
    }
    assert len(digests) == 3


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-(2**60), 2**60), max_size=40))
def test_every_number_comes_back(numbers):
    encoded = varints(folded(np.array(numbers, np.int64)))
    found, value, shift = [], 0, 0
    for byte in encoded:
        value, shift = value | (byte & 127) << shift, shift + 7
        if byte < 128:
            found.append(value // 2 if value % 2 == 0 else -(value + 1) // 2)
            value = shift = 0
    assert found == numbers


def test_what_is_too_much_is_left_out_from_the_shortest_and_counted():
    many = [row(k * 100, 1 + (k * 37) % 91, rank=k % 8, spans_in_all=4000) for k in range(3999)]
    many.append(row(500_000, 0, open=True, spans_in_all=4000))
    found, data = fitting(spans(*many), NodeClocks(), NOBODY, LIGHT, most_bytes=20_000)
    assert 10_000 < len(data) <= 20_000
    assert found.left_out == 4000 - len(found.spans) > 1000
    assert found.spans["duration_ns"][~found.spans.open].min() > 30
    assert found.spans.open.sum() == 1


def test_the_most_spans_of_64_ranks_stay_below_the_limit():
    rng = random.Random(5)
    many = [
        collective(
            rng.randrange(10**10), rng.randrange(10**8), k % 64, seq=rng.randrange(10**5),
            blocked_ns=rng.randrange(10**8), step=k % 3, bytes=1 << (k % 30), node=f"n{k % 8}",
        )
        for k in range(14_000)
    ]  # fmt: skip
    _, data = fitting(spans(*many), NodeClocks(), NOBODY, LIGHT)
    assert MOST_BYTES * 0.8 < len(data) <= MOST_BYTES


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_the_colours_are_those_of_the_theme(theme):
    header, _ = read(payload(drawing(*rows()), theme))
    assert header["theme"]["text"] == theme.text
    assert header["colours"]["compute"] == "#3B7DB8"
