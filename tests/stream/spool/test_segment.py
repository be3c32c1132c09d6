from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.stream.spool.segment import PREFIX, frame, payload, scan

PAYLOADS = st.lists(st.tuples(st.binary(max_size=40), st.integers(0, 2**32 - 1)), max_size=6)


def held(data, start=0):
    return [(data[place.offset : place.end], place.rows) for place in scan(data, start).positions]


@given(PAYLOADS)
def test_a_scan_finds_every_entry_in_order(entries):
    data = b"".join(frame(body, rows) for body, rows in entries)
    assert held(data) == entries
    result = scan(data)
    assert (result.lost_rows, result.corrupt_regions, result.torn) == (0, 0, False)


@given(PAYLOADS.filter(bool), st.data())
def test_a_scan_begins_at_the_start_of_an_entry(entries, data):
    frames = [frame(body, rows) for body, rows in entries]
    skipped = data.draw(st.integers(0, len(frames)))
    assert held(b"".join(frames), len(b"".join(frames[:skipped]))) == entries[skipped:]


@given(st.binary(max_size=100), st.integers(0, 2**32 - 1))
def test_one_whole_entry_gives_its_payload_and_anything_else_none(body, rows):
    entry = frame(body, rows)
    assert payload(entry) == body
    assert len(entry) == PREFIX + len(body)
    assert payload(entry[:-1]) is None
    assert payload(entry + b"x") is None
    assert payload(b"") is None


@given(PAYLOADS.filter(bool), st.integers(1, 200))
def test_a_segment_that_ends_within_an_entry_keeps_those_before_it(entries, cut):
    whole = [frame(body, rows) for body, rows in entries]
    last = whole[-1]
    data = b"".join(whole[:-1]) + last[: max(1, len(last) - cut)]
    assert held(data) == entries[:-1]
    assert scan(data).torn


def test_a_damaged_payload_costs_its_rows_and_nothing_behind_it():
    first, second = frame(b"first", 3), frame(b"second", 4)
    damaged = first[:-1] + b"!" + second
    result = scan(damaged)
    assert held(damaged) == [(b"second", 4)]
    assert (result.lost_rows, result.corrupt_regions, result.torn) == (3, 0, False)


def test_a_damaged_header_is_a_region_whose_rows_nobody_knows():
    damaged = b"!" + frame(b"first", 3)[1:] + frame(b"second", 4)
    result = scan(damaged)
    assert held(damaged) == [(b"second", 4)]
    assert (result.lost_rows, result.corrupt_regions, result.torn) == (0, 1, False)


@given(st.binary(max_size=60))
def test_the_bytes_of_a_header_inside_a_payload_are_no_entry(noise):
    inner = frame(noise, 9)
    assert held(frame(inner, 1)) == [(inner, 1)]


@given(st.binary(max_size=300))
def test_noise_holds_no_entry_and_ends_the_scan(noise):
    assert scan(noise).positions == ()
