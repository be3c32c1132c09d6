"""Blocks cover a checkpoint, and their digests identify it."""

from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.checkpoint.memory.blocks import DIGEST_BYTES, blocks, checksum, digests, most_blocks
from pulsetrain.checkpoint.memory.slots import Description


def description(*, layout: int = 100, values: int = 10, payload: int = 10_000) -> Description:
    return Description(
        rank=9,
        step=1,
        attempt=0,
        world=10,
        layout_bytes=layout,
        values_bytes=values,
        payload_bytes=payload,
    )


@given(st.integers(0, 300_000), st.integers(0, 9000), st.integers(0, 400 << 20))
def test_blocks_cover_every_byte_once_and_are_not_too_many(layout, values, payload):
    described = description(layout=layout, values=values, payload=payload)
    at = 0
    for start, size in blocks(described):
        assert start == at
        at += size
    assert at == described.total_bytes
    assert len(blocks(described)) <= most_blocks(described.total_bytes)


@given(st.integers(0, 2**40), st.data())
def test_no_smaller_checkpoint_has_more_blocks(total, data):
    payload = data.draw(st.integers(0, min(total, 2**31)))
    assert len(blocks(description(payload=payload))) <= most_blocks(total)


def test_one_changed_byte_changes_one_digest():
    described = description()
    data = bytearray(described.total_bytes)
    before = digests(memoryview(data), blocks(described))
    data[5000] = 1
    after = digests(memoryview(data), blocks(described))
    changed = [i for i in range(0, len(before), 16) if before[i : i + 16] != after[i : i + 16]]
    assert changed == [16 * 2]


def test_the_checksum_is_a_signed_word_that_every_digest_changes():
    before = bytes(range(4 * DIGEST_BYTES))
    sums = {checksum(before[:i] + b"!" + before[i + 1 :]) for i in range(0, len(before), DIGEST_BYTES)}
    assert len(sums | {checksum(before)}) == 5
    assert all(-(2**63) <= value < 2**63 for value in sums)
