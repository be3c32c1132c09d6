"""A manifest survives its file, damage is found, and old steps go without what is still needed."""

import contextlib
import json
from dataclasses import replace

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.checkpoint.storage.backend import open_storage
from pulsetrain.checkpoint.storage.manifest import (
    Blob,
    Checkpoints,
    Manifest,
    Segment,
    Table,
    folder_of,
    parse_manifest,
    stem_of,
    step_of,
)
from pulsetrain.core.errors import CorruptData, Unavailable
from tests.checkpoint.stored import commit_arrays


def digest(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data)


def manifest(step: int, packs: dict[str, bytes]) -> Manifest:
    """One rank whose segments are these packs' contents."""
    segments, offset = [], 0
    for data in packs.values():
        segments.append(Segment(offset=offset, bytes=len(data), hash=digest(data)))
        offset += len(data)
    table = Table(rank=0, layout_bytes=1, values_bytes=2, payload_bytes=3, segments=tuple(segments))
    return Manifest(
        job="j",
        step=step,
        attempt=2,
        world=1,
        created_ns=5,
        written_bytes=offset,
        tables={0: table},
        blobs={digest(data): Blob(file=file, offset=0, bytes=len(data)) for file, data in packs.items()},
    )


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(open_storage(str(tmp_path)), "j")


def commit(
    checkpoints: Checkpoints, step: int, old: dict[str, bytes] | None = None, *, attempt: int | None = None
) -> Manifest:
    """A step with a pack of its own, and packs of earlier steps."""
    pack = "own" if attempt is None else stem_of(attempt, 0)
    own = {f"{folder_of(step)}/{pack}.pack": f"content of {step}".encode()}
    for file, data in own.items():
        checkpoints.storage.put(checkpoints.path(file), [data])
    made = replace(manifest(step, own | (old or {})), attempt=attempt or 0)
    checkpoints.storage.put(checkpoints.path(f"{folder_of(step)}/manifest.json"), [made.encode()])
    return made


def test_a_manifest_survives_its_file():
    made = manifest(7, {"a.pack": b"abc", "b.pack": b"defg"})
    assert parse_manifest(made.encode()) == made
    assert made.files == {"a.pack", "b.pack"}
    assert made.logical_bytes == made.unique_bytes == 7


def test_a_table_survives_its_file():
    (table,) = manifest(7, {"a.pack": b"abc"}).tables.values()
    assert Table.parse(json.loads(table.encode())) == table


@given(st.integers(0), st.integers(1, 255))
def test_a_damaged_manifest_is_never_read_as_something_else(at, flip):
    made = manifest(7, {"a.pack": b"abc"})
    data = bytearray(made.encode())
    data[at % len(data)] ^= flip
    with contextlib.suppress(CorruptData):
        assert parse_manifest(bytes(data)) == made  # white space outside of the body is of no matter


def test_another_format_is_named():
    body = json.dumps({"format": 99})
    outer = json.dumps({"checksum": digest(body.encode()), "body": body})
    with pytest.raises(CorruptData, match="checkpoint manifest of format 99; this reads 1"):
        parse_manifest(outer.encode())


@given(st.integers(0, 10**12 - 1), st.integers(0, 10**12 - 1))
def test_names_of_folders_sort_as_steps_do(one, other):
    assert step_of(folder_of(one)) == one
    assert (folder_of(one) < folder_of(other)) == (one < other)


@pytest.mark.parametrize("name", ["step-", "step-x", "7", "other"])
def test_other_folders_are_no_steps(name):
    assert step_of(name) is None


def test_committed_steps_are_those_with_a_whole_manifest(checkpoints):
    for step in (1, 2, 3, 4):
        commit(checkpoints, step)
    checkpoints.storage.remove("j/step-000000000002/manifest.json")
    checkpoints.storage.put("j/step-000000000003/manifest.json", [b"{}"])
    assert checkpoints.steps() == [1, 2, 3, 4]
    assert [m.step for m in checkpoints.committed()] == [4, 1]
    assert [m.step for m in checkpoints.committed(newest=1)] == [4]
    assert checkpoints.manifest(2) is None
    with pytest.raises(CorruptData):
        checkpoints.manifest(3)


def test_a_removed_step_is_no_longer_committed(checkpoints):
    first, second = commit(checkpoints, 1), commit(checkpoints, 2)
    checkpoints.storage.remove("j/step-000000000001")
    assert checkpoints.kept([second, first]) == [second]
    assert checkpoints.lost_files(first) == ["step-000000000001/own.pack"]
    assert checkpoints.lost_files(second) == []


def test_retention_keeps_packs_that_a_kept_step_refers_to(checkpoints):
    commit(checkpoints, 1)
    old = {"step-000000000001/own.pack": b"content of 1"}
    commit(checkpoints, 2, old)
    commit(checkpoints, 3, old)
    assert checkpoints.retain(last=2, every=0) == [1]
    assert checkpoints.storage.list("j/step-000000000001") == ["own.pack"]
    assert [m.step for m in checkpoints.committed()] == [3, 2]
    assert all(checkpoints.verify(m) == [] for m in checkpoints.committed())


def test_retention_keeps_every_kth_step_and_newer_uncommitted_ones(checkpoints):
    for step in (10, 15, 20, 30):
        commit(checkpoints, step)
    checkpoints.storage.put("j/step-000000000012/a.table.json", [b"{}"])  # was abandoned
    checkpoints.storage.put("j/step-000000000040/a.table.json", [b"{}"])  # is being written
    assert checkpoints.retain(last=1, every=20) == [10, 12, 15]
    assert checkpoints.steps() == [20, 30, 40]


def saved_again(checkpoints, edition, shared=None):
    """Step 10 once more: a pack of its own, and packs of earlier saves. Returns the manifest."""
    stem = stem_of(0, 0, edition, checkpoints.run)
    own = {f"{folder_of(10)}/{stem}.pack": f"content of {edition}".encode()}
    for name in ("pack", "table.json", "receipt.json"):
        path = checkpoints.path(f"{folder_of(10)}/{stem}.{name}")
        checkpoints.storage.put(path, [f"content of {edition}".encode()])
    made = replace(manifest(10, own | (shared or {})), attempt=0, edition=edition, run=checkpoints.run)
    checkpoints.storage.put(checkpoints.path(f"{folder_of(10)}/manifest.json"), [made.encode()])
    return made


def test_a_step_whose_manifest_cannot_be_read_is_not_removed(checkpoints):
    """It is damaged, or a newer version wrote it."""
    for step in (1, 2, 3, 4):
        commit(checkpoints, step)
    for step, text in ((1, b'{"format": 2}'), (2, b"half")):
        checkpoints.storage.put(checkpoints.path(f"{folder_of(step)}/manifest.json"), [text])
    assert checkpoints.retain(last=1, every=0) == [3]
    assert checkpoints.steps() == [1, 2, 4]


def test_what_a_run_wrote_of_a_step_before_it_saved_it_again_goes(checkpoints):
    checkpoints.begin_run("1f")
    checkpoints.storage.put(f"j/{folder_of(10)}/{stem_of(0, 0, 0, 'ee')}.pack", [b"of another run"])
    saved_again(checkpoints, 0)
    first = {f"{folder_of(10)}/{stem_of(0, 0, 0, '1f')}.pack": b"content of 0"}
    before = saved_again(checkpoints, 1)
    newest = saved_again(checkpoints, 2, first)
    one, two = stem_of(0, 0, 1, "1f"), stem_of(0, 0, 2, "1f")
    kept = {"manifest.json", f"{stem_of(0, 0, 0, '1f')}.pack", f"{stem_of(0, 0, 0, 'ee')}.pack"}
    kept |= {f"{two}.{name}" for name in ("pack", "table.json", "receipt.json")}
    checkpoints.retain(last=1, every=0, in_use={(10, 0, 1)})  # it is about to be committed
    left = set(checkpoints.storage.list(f"j/{folder_of(10)}"))
    assert left == kept | {f"{one}.{name}" for name in ("pack", "table.json", "receipt.json")}
    checkpoints.retain(last=1, every=0, replaced=[before])  # a save on its way may refer to its pack
    assert set(checkpoints.storage.list(f"j/{folder_of(10)}")) == kept | {f"{one}.pack"}
    checkpoints.retain(last=1, every=0)
    assert set(checkpoints.storage.list(f"j/{folder_of(10)}")) == kept
    assert checkpoints.verify(newest) == []


def test_a_job_that_began_anew_keeps_what_it_commits_and_what_an_earlier_attempt_has(checkpoints):
    for step in (900, 1000):
        commit(checkpoints, step, attempt=0)
    for step in (100, 200, 300):
        commit(checkpoints, step, attempt=1)
        checkpoints.retain(last=2, every=0)
        assert checkpoints.manifest(step) is not None
    assert [m.order for m in checkpoints.committed()] == [(1, 300), (1, 200), (0, 1000), (0, 900)]
    assert [m.order for m in checkpoints.committed(newest=2)] == [(1, 300), (1, 200)]
    for step in (900, 1000, 1100):  # the new attempt comes by there itself
        commit(checkpoints, step, attempt=1)
        checkpoints.retain(last=2, every=0)
    assert [m.order for m in checkpoints.committed()] == [(1, 1100), (1, 1000)]


def test_packs_that_a_step_beyond_the_newest_refers_to_stay(checkpoints):
    old = {f"{folder_of(100)}/{stem_of(0, 0)}.pack": b"content of 100"}
    commit(checkpoints, 100, attempt=0)
    commit(checkpoints, 1000, old, attempt=0)
    for step in (200, 300):
        commit(checkpoints, step, attempt=1)
    checkpoints.retain(last=2, every=0)
    assert checkpoints.verify(checkpoints.manifest(1000)) == []


def test_the_step_that_was_just_committed_stays_also_where_its_attempt_has_an_older_number(checkpoints):
    for step in (900, 1000):
        commit(checkpoints, step, attempt=3)
    commit(checkpoints, 100, attempt=0)
    assert checkpoints.retain(last=2, every=0, spare=100) == []
    assert checkpoints.retain(last=2, every=0) == [100]


def test_a_step_that_a_newer_attempt_has_only_begun_to_write_still_counts_for_the_older_one(checkpoints):
    commit(checkpoints, 100, attempt=1)
    commit(checkpoints, 200, attempt=0)
    checkpoints.storage.put(f"j/{folder_of(200)}/{stem_of(2, 0)}.table.json", [b"{}"])
    assert [m.order for m in checkpoints.committed(newest=1)] == [(1, 100)]
    assert checkpoints.newest_attempt() == 2


def test_what_an_attempt_has_left_uncommitted_is_removed_and_nothing_else(checkpoints):
    commit(checkpoints, 100, attempt=1)
    needed = {f"{folder_of(300)}/{stem_of(2, 1)}.pack": b"still needed"}
    for name in (f"{stem_of(2, 0)}.pack", f"{stem_of(2, 0)}.table.json", f"{stem_of(3, 0)}.table.json"):
        checkpoints.storage.put(f"j/{folder_of(300)}/{name}", [b"x"])
    for file, data in needed.items():
        checkpoints.storage.put(checkpoints.path(file), [data])
    commit(checkpoints, 200, needed, attempt=2)
    for step in (100, 200, 300, 400):
        checkpoints.remove_abandoned(step, 2)
    left = checkpoints.storage.list(f"j/{folder_of(300)}")
    assert left == [f"{stem_of(2, 1)}.pack", f"{stem_of(3, 0)}.table.json"]
    checkpoints.remove_abandoned(300, 3)
    assert [m.order for m in checkpoints.committed()] == [(2, 200), (1, 100)]
    assert all(checkpoints.verify(m) == [] for m in checkpoints.committed())


def test_nothing_is_removed_before_anything_is_committed(checkpoints):
    checkpoints.storage.put("j/step-000000000012/a.table.json", [b"{}"])
    assert checkpoints.retain(last=1, every=0) == []
    assert checkpoints.steps() == [12]


def test_a_segment_is_checked_when_it_is_read(checkpoints):
    made = commit(checkpoints, 1)
    (segment,) = made.tables[0].segments
    target = memoryview(bytearray(segment.bytes))
    assert checkpoints.read_segment(made, segment, target) == segment.bytes
    assert bytes(target) == b"content of 1"
    checkpoints.storage.put("j/step-000000000001/own.pack", [b"damaged of 1"])
    with pytest.raises(CorruptData, match=r"own.pack: bytes 0 to 12 are damaged"):
        checkpoints.read_segment(made, segment, target)
    assert checkpoints.verify(made) == ["step-000000000001/own.pack: bytes 0 to 12 are damaged"]
    checkpoints.storage.remove("j/step-000000000001/own.pack")
    with pytest.raises(CorruptData, match="No such file"):
        checkpoints.read_segment(made, segment, target)


def test_a_storage_that_refuses_is_not_damage(checkpoints, monkeypatch):
    made = commit(checkpoints, 1)
    (segment,) = made.tables[0].segments

    def refuse(path, offset, target):
        raise PermissionError(13, "refused")

    monkeypatch.setattr(checkpoints.storage, "read_into", refuse)
    with pytest.raises(Unavailable, match="refused"):
        checkpoints.read_segment(made, segment, memoryview(bytearray(segment.bytes)))


def test_a_missing_rank_is_found(checkpoints):
    made = commit(checkpoints, 1)
    whole = Manifest(**{**vars(made), "world": 2})
    assert checkpoints.verify(whole) == ["rank 1 is missing"]


def test_the_layout_of_a_rank_is_read_from_its_first_segment(tmp_path):
    checkpoints = commit_arrays(tmp_path, {0: [("w", np.ones(3, dtype=np.float32), (), ())]})
    layout, values = checkpoints.layout(checkpoints.manifest(1), 0)
    assert [(e.name, e.shape) for e in layout.entries] == [("w", (3,))]
    assert values == b"[]"
