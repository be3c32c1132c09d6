"""Words of the header page are read by name, and a slot's header says what was packed or nothing."""

import dataclasses
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.checkpoint.memory.header_page import (
    SLOT_WORDS,
    VERSION,
    HeaderPage,
    pack_slot,
    unpack_slot,
    write_empty_page,
)
from pulsetrain.checkpoint.memory.slots import MAX_SLOTS, SlotInfo
from pulsetrain.core.errors import CorruptData

WORD = st.integers(-(2**63), 2**63 - 1)
INFOS = st.builds(
    SlotInfo,
    **{name: WORD for name in SLOT_WORDS if name != "seq"},
    seq=st.integers(1, 2**62 - 1).map(lambda n: 2 * n),
    slot=st.integers(0, MAX_SLOTS - 1),
)


def info(slot: int = 0, **fields: int) -> SlotInfo:
    values = {name: 10 + i for i, name in enumerate(SLOT_WORDS)} | {"seq": 2} | fields
    return SlotInfo(slot=slot, **values)


@pytest.fixture
def fd():
    fd = os.memfd_create("page")
    write_empty_page(fd)
    yield fd
    os.close(fd)


def test_the_table_names_every_field_but_the_slot_itself():
    fields = {field.name for field in dataclasses.fields(SlotInfo)}
    assert set(SLOT_WORDS) == fields - {"slot"}
    assert len(set(SLOT_WORDS)) == len(SLOT_WORDS)


@given(INFOS)
def test_what_is_packed_is_unpacked(packed):
    assert unpack_slot(packed.slot, pack_slot(packed)) == packed


@given(INFOS, st.integers(0), st.integers(1, 255))
def test_no_damaged_header_is_ever_read(packed, at, flip):
    raw = bytearray(pack_slot(packed))
    raw[at % len(raw)] ^= flip
    assert unpack_slot(packed.slot, bytes(raw)) is None


@pytest.mark.parametrize("seq", [0, 1, 7])
def test_a_slot_that_is_empty_or_being_written_has_no_header(seq):
    assert unpack_slot(0, pack_slot(info(seq=seq))) is None


def test_a_new_page_has_no_steps(fd):
    page = HeaderPage(fd)
    assert (page.durable_step, page.replicated_step, page.skip_step) == (-1, -1, -1)
    assert (page.active, page.persist_every, page.lag_steps, page.skip_count) == (0, 0, 0, 0)
    assert page.skip_reason == ""


def test_both_sides_see_each_others_words(fd):
    trainer, agent = HeaderPage(fd), HeaderPage(fd)
    trainer.active = 9
    agent.lag_steps = 3
    agent.durable_step = 70
    assert (agent.active, trainer.lag_steps, trainer.durable_step) == (9, 3, 70)


@given(st.lists(st.sampled_from(range(MAX_SLOTS)), unique=True))
def test_headers_of_slots_do_not_touch_each_other(slots):
    fd = os.memfd_create("page")
    write_empty_page(fd)
    page = HeaderPage(fd)
    for slot in slots:
        page.write_slot_header(info(slot, step=slot))
    for slot in range(MAX_SLOTS):
        expected = info(slot, step=slot) if slot in slots else None
        assert unpack_slot(slot, page.slot_header(slot)) == expected
    assert (page.active, page.durable_step) == (0, -1)
    os.close(fd)


def test_claims_hold_for_one_generation_of_a_slot(fd):
    page, old, new = HeaderPage(fd), info(2, generation=5), info(2, generation=6)
    for claim, words in (
        (page.sending, page.sending_generation),
        (page.shared, page.shared_generation),
        (page.verified, page.verified_generation),
    ):
        words[2] = 5
        assert claim(old)
        assert not claim(new)
    page.taken_generation[2] = 6
    assert page.taken(old)  # what is older was taken too, or given up


def test_a_long_reason_is_cut(fd):
    page = HeaderPage(fd)
    page.skip_reason = "x" * 5000
    assert set(page.skip_reason) == {"x"}
    assert 100 < len(page.skip_reason) < 300
    page.skip_reason = "no room"
    assert page.skip_reason == "no room"


def test_another_version_is_refused(fd):
    HeaderPage(fd).version = 99
    with pytest.raises(CorruptData, match=f"not an arena of version {VERSION}"):
        HeaderPage(fd)


def test_a_short_file_is_refused():
    fd = os.memfd_create("short")
    with pytest.raises(CorruptData, match="0 bytes; an arena has 4096 or more"):
        HeaderPage(fd)
    os.close(fd)
