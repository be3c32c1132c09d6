"""Files of pages that are kept by content: nothing is lost, and the same page is kept once."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.agent.processes.image_blocks import BLOCK, MOST_PACKS, ImageBlocks
from pulsetrain.core.errors import Unavailable

CONTENT = st.tuples(
    st.lists(st.integers(0, 5), max_size=12), st.integers(0, BLOCK - 1)
).map(lambda drawn: b"".join(bytes([n]) * BLOCK for n in drawn[0]) + b"\7" * drawn[1])  # fmt: skip
FILES = st.dictionaries(st.sampled_from(["a/rank_0", "a/rank_1", "b/rank_0", "b%2F/x"]), CONTENT, min_size=1)


class Folder:
    def __init__(self, folder):
        self.folder, self.blocks = folder, ImageBlocks(folder / "blocks")

    def put(self, name, content):
        (self.folder / "in").write_bytes(content)
        return self.blocks.put(name, self.folder / "in")

    def get(self, name):
        self.blocks.get(name, self.folder / "out")
        return (self.folder / "out").read_bytes()

    def disk_blocks(self):
        return sum(p.stat().st_size // BLOCK for p in (self.folder / "blocks").glob("*.pack"))


@pytest.fixture
def kept(tmp_path):
    return Folder(tmp_path)


def distinct(*contents):
    return {c[at : at + BLOCK].ljust(BLOCK, b"\0") for c in contents for at in range(0, len(c), BLOCK)}


@given(FILES)
def test_what_is_put_is_got_back_and_each_block_is_kept_once(files):
    with tempfile.TemporaryDirectory() as folder:
        kept = Folder(Path(folder))
        new_bytes = sum(kept.put(name, content).new_bytes for name, content in files.items())
        assert {name: kept.get(name) for name in files} == files
        assert kept.blocks.names() == sorted(files)
        assert new_bytes == kept.blocks.stored_bytes() == len(distinct(*files.values())) * BLOCK
        assert kept.disk_blocks() == len(distinct(*files.values()))


@given(FILES)
def test_deleting_one_image_keeps_what_another_has_of_it(files):
    with tempfile.TemporaryDirectory() as folder:
        kept = Folder(Path(folder))
        for name, content in files.items():
            kept.put(name, content)
        kept.blocks.delete("a/")
        left = {name: content for name, content in files.items() if not name.startswith("a/")}
        assert {name: kept.get(name) for name in kept.blocks.names()} == left
        assert kept.disk_blocks() == len(distinct(*left.values()))


@given(CONTENT, CONTENT)
def test_a_file_that_is_put_again_is_the_newer_one(first, second):
    with tempfile.TemporaryDirectory() as folder:
        kept = Folder(Path(folder))
        kept.put("a", first)
        kept.put("other", first)
        kept.put("a", second)
        assert (kept.get("a"), kept.get("other")) == (second, first)


def test_eight_replicas_take_little_more_than_one_and_a_later_image_its_changes(kept):
    pages = [bytes([i & 255, i >> 8]) * (BLOCK // 2) for i in range(1000)]
    for rank in range(8):
        own = [bytes([rank, 255, 255, i]) * (BLOCK // 4) for i in range(20)]
        kept.put(f"one/{rank}", b"".join(pages + own))
    assert kept.blocks.stored_bytes("one/") <= 1.3 * kept.blocks.stored_bytes("one/0")
    pages[3:6] = [b"z" * BLOCK, b"y" * BLOCK, pages[9]]
    assert kept.put("two/0", b"".join(pages)).new_bytes == 2 * BLOCK


def test_a_full_disk_changes_nothing(kept, monkeypatch):
    kept.put("a", b"x" * BLOCK)

    def full(self, target):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", full)
        with pytest.raises(OSError, match="No space"):
            kept.put("a", b"y" * BLOCK)
    assert kept.get("a") == b"x" * BLOCK
    assert not list((kept.folder / "blocks").glob("*.new"))


@pytest.mark.parametrize("kind", ["pack", "recipe"])
def test_a_file_that_was_cut_short_is_refused(kept, kind):
    kept.put("a", b"x" * BLOCK)
    [path] = (kept.folder / "blocks").glob(f"*.{kind}")
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(Unavailable, match=r"a: a block of it is missing|a: its recipe is not whole"):
        kept.get("a")


def images_that_share_a_page_each(kept, count):
    """Each image has one page more than the one before, and only the newest is left."""
    pages = []
    for number in range(count):
        pages.append(f"{number:04d}".encode() * (BLOCK // 4))
        kept.put(f"{number}/rank_0", b"".join(pages))
        kept.blocks.delete("", but=f"{number}/")
    return f"{count - 1}/rank_0", b"".join(pages)


def test_however_many_images_there_were_few_files_are_opened_for_one(kept):
    name, content = images_that_share_a_page_each(kept, 3 * MOST_PACKS)
    assert len(list((kept.folder / "blocks").glob("*.pack"))) <= MOST_PACKS
    assert (kept.get(name), kept.disk_blocks()) == (content, 3 * MOST_PACKS)


def test_a_disk_too_full_to_put_packs_together_loses_nothing(kept, monkeypatch):
    name, content = images_that_share_a_page_each(kept, MOST_PACKS)
    kept.put("next/rank_0", content + b"new" * BLOCK)

    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    kept.blocks.delete("gone/")
    assert (kept.get(name), kept.get("next/rank_0")) == (content, content + b"new" * BLOCK)
    assert not list((kept.folder / "blocks").glob("*.new"))


def test_a_disk_too_full_to_make_a_pack_smaller_leaves_it_until_there_is_room(kept, monkeypatch):
    kept.put("a", b"x" * BLOCK + b"y" * BLOCK)
    kept.put("b", b"x" * BLOCK)

    def full(self, target):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", full)
        kept.blocks.delete("a")
        assert (kept.get("b"), kept.disk_blocks()) == (b"x" * BLOCK, 2)
        assert not list((kept.folder / "blocks").glob("*.new"))
    kept.blocks.delete("a")
    assert (kept.get("b"), kept.disk_blocks()) == (b"x" * BLOCK, 1)


def test_a_damaged_block_is_kept_anew_by_the_next_image(tmp_path: Path) -> None:
    blocks, source = ImageBlocks(tmp_path / "blocks"), tmp_path / "pages"
    source.write_bytes(bytes([1]) * BLOCK + bytes([2]) * BLOCK)
    blocks.put("z/pages-1.img", source)
    (pack,) = (tmp_path / "blocks").glob("*.pack")
    with pack.open("r+b") as file:
        file.write(b"rot")

    kept = blocks.put("a/pages-1.img", source)
    blocks.get("a/pages-1.img", tmp_path / "back")

    assert kept.new_bytes == BLOCK
    assert (tmp_path / "back").read_bytes() == source.read_bytes()
