"""Keeps files of memory pages by content, so that a page which several processes or images have is kept once.

Pages of ranks are mostly those of the same libraries, and most stay as they were from one image to the next.
A file is a list of digests (its recipe). Its blocks that nobody kept before make up one pack. A pack ends
with the digests of its blocks and their number.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pulsetrain.core.errors import Unavailable

BLOCK = 4096
DIGEST = 16
COUNT = 8
RECIPE, PACK, NEW = ".recipe", ".pack", ".new"
READ = 256 * BLOCK
Places = dict[bytes, list[tuple[int, int]]]
MOST_PACKS = 64
"""More are put together: each image may leave some that a page of is still in use, and `get` opens all."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What one file took. `bytes` is its size, `new_bytes` are those of blocks that nobody kept before."""

    bytes: int
    new_bytes: int


class ImageBlocks:
    """Files by name, kept as blocks in a folder. Names are paths. One thread at a time.

    A block that is here already is read before a new file counts on it. A damaged one is kept anew.
    The last block of a file is filled up with zeros.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, name: str, source: Path) -> Kept:
        """Keep a file. A file of that name is replaced. Nothing changes where it raises `OSError`."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        at = self._folder / _plain(name)
        pack, recipe = at.with_name(at.name + PACK), at.with_name(at.name + RECIPE)
        pack_new, recipe_new = at.with_name(at.name + PACK + NEW), at.with_name(at.name + RECIPE + NEW)
        if pack.exists():  # others may have blocks of it
            pack = _free_name(at)
        try:
            with self._places() as places:
                size, fresh = _write(source, pack_new, recipe_new, places)
            pack_new.rename(pack)
            recipe_new.rename(recipe)
        except OSError:
            pack_new.unlink(missing_ok=True)
            recipe_new.unlink(missing_ok=True)
            raise
        if not fresh:
            pack.unlink()
        return Kept(bytes=size, new_bytes=fresh * BLOCK)

    def get(self, name: str, target: Path) -> None:
        """Write a file as it was put. Raises `Unavailable` where that is not possible any more, and `OSError`
        where it is not possible now: the disk is full, or does not answer."""
        try:
            size, wanted = _read_recipe(self._folder / (_plain(name) + RECIPE))
            with self._places() as places, target.open("wb") as written:
                for digest in wanted:
                    written.write(_read_block(places[digest], digest))
                written.truncate(size)
        except KeyError as error:
            raise Unavailable(f"{name}: a block of it is missing") from error
        except (FileNotFoundError, ValueError) as error:
            raise Unavailable(f"{name}: {error}") from error

    def names(self) -> list[str]:
        """The files that are kept."""
        return sorted(_full(path.name.removesuffix(RECIPE)) for path in self._recipes())

    def stored_bytes(self, prefix: str = "") -> int:
        """What the blocks of the files whose names begin so take, each counted once."""
        return len(self._wanted(prefix)) * BLOCK

    def disk_bytes(self) -> int:
        """What all blocks that are kept take on the disk."""
        return sum(pack.stat().st_size for pack in self._packs())

    def delete(self, prefix: str, *, but: str = "\0") -> None:
        """Forget files whose names begin with `prefix`, not with `but`, and blocks that no other file has."""
        for name in self.names():
            if name.startswith(prefix) and not name.startswith(but):
                (self._folder / (_plain(name) + RECIPE)).unlink(missing_ok=True)
        for left in self._folder.glob("*" + NEW):
            left.unlink(missing_ok=True)
        wanted = self._wanted("")
        for pack in self._packs():
            _shrink(pack, wanted)
        self._merge()

    def _merge(self) -> None:
        """Put the smallest packs together where there are many. A full disk leaves them as they are."""
        packs = sorted(self._packs(), key=lambda pack: (pack.stat().st_size, pack.name))
        if len(packs) > MOST_PACKS:
            _join(packs[: len(packs) - MOST_PACKS // 2])

    def _wanted(self, prefix: str) -> set[bytes]:
        paths = [self._folder / (_plain(n) + RECIPE) for n in self.names() if n.startswith(prefix)]
        return {digest for path in paths for digest in _read_recipe(path)[1]}

    @contextlib.contextmanager
    def _places(self) -> Iterator[Places]:
        """Where each block is, in packs that are open meanwhile."""
        places: Places = {}
        with contextlib.ExitStack() as stack:
            for pack in self._packs():
                file = os.open(pack, os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, file)
                for i, digest in enumerate(_digests_of(pack)):
                    places.setdefault(digest, []).append((file, i * BLOCK))
            yield places

    def _packs(self) -> list[Path]:
        return sorted(self._folder.glob("*" + PACK))

    def _recipes(self) -> list[Path]:
        return sorted(self._folder.glob("*" + RECIPE))


def _plain(name: str) -> str:
    return name.replace("%", "%25").replace("/", "%2F")


def _full(name: str) -> str:
    return name.replace("%2F", "/").replace("%25", "%")


def _free_name(at: Path) -> Path:
    number = 1
    while (path := at.with_name(f"{at.name}.{number}{PACK}")).exists():
        number += 1
    return path


def _digest(block: bytes) -> bytes:
    return hashlib.blake2b(block, digest_size=DIGEST).digest()


def _blocks(source: Path) -> Iterator[bytes]:
    with source.open("rb") as file:
        while chunk := file.read(READ):
            chunk += bytes(-len(chunk) % BLOCK)
            yield from (chunk[at : at + BLOCK] for at in range(0, len(chunk), BLOCK))


def _read_block(places: Iterable[tuple[int, int]], digest: bytes) -> bytes:
    """The block, from a place that has it whole. Raises `ValueError` where none has, and `OSError`."""
    failed: OSError | None = None
    for file, offset in places:
        try:
            block = os.pread(file, BLOCK, offset)
        except OSError as error:
            failed = error
            continue
        if _digest(block) == digest:
            return block
    raise failed or ValueError("a block of it is damaged")


def _is_whole(places: Iterable[tuple[int, int]], digest: bytes) -> bool:
    try:
        _read_block(places, digest)
    except (OSError, ValueError):
        return False
    return True


def _write(source: Path, pack: Path, recipe: Path, places: Places) -> tuple[int, int]:
    """Write a file's recipe, and a pack of blocks that no place has whole. Its size, and how many blocks."""
    fresh: dict[bytes, None] = {}
    known: set[bytes] = set()
    size = source.stat().st_size
    with recipe.open("wb") as listed, pack.open("wb") as written:
        listed.write(size.to_bytes(COUNT, "little"))
        for block in _blocks(source):
            digest = _digest(block)
            listed.write(digest)
            if digest in known or digest in fresh:
                continue
            if _is_whole(places.get(digest, ()), digest):
                known.add(digest)
            else:
                fresh[digest] = None
                written.write(block)
        written.write(_index(fresh))
    return size, len(fresh)


def _index(digests: Iterable[bytes]) -> bytes:
    joined = b"".join(digests)
    return joined + (len(joined) // DIGEST).to_bytes(COUNT, "little")


def _digests_of(pack: Path) -> list[bytes]:
    """The digests of a pack's blocks, none where it is not whole."""
    size = pack.stat().st_size
    with pack.open("rb") as file:
        file.seek(max(0, size - COUNT))
        count = int.from_bytes(file.read(COUNT), "little")
        if count * (BLOCK + DIGEST) + COUNT != size:
            return []
        file.seek(count * BLOCK)
        return _split(file.read(count * DIGEST))


def _read_recipe(path: Path) -> tuple[int, list[bytes]]:
    data = path.read_bytes()
    size, digests = int.from_bytes(data[:COUNT], "little"), _split(data[COUNT:])
    if len(digests) != -(-size // BLOCK):
        raise ValueError("its recipe is not whole")
    return size, digests


def _split(joined: bytes) -> list[bytes]:
    return [joined[at : at + DIGEST] for at in range(0, len(joined), DIGEST)]


def _join(packs: Sequence[Path]) -> None:
    """Move the blocks of packs into the first of them."""
    new = packs[0].with_name(packs[0].name + NEW)
    moved: dict[bytes, None] = {}
    try:
        with new.open("wb") as written:
            for pack in packs:
                for digest, block in _contents(pack):
                    if digest not in moved and _digest(block) == digest:
                        moved[digest] = None
                        written.write(block)
            written.write(_index(moved))
        new.rename(packs[0])
    except OSError:
        new.unlink(missing_ok=True)
        return
    for pack in packs[1:]:
        pack.unlink(missing_ok=True)


def _contents(pack: Path) -> Iterator[tuple[bytes, bytes]]:
    """The digest and the bytes of each block."""
    with pack.open("rb") as file:
        for digest in _digests_of(pack):
            yield digest, file.read(BLOCK)


def _shrink(pack: Path, wanted: set[bytes]) -> None:
    """Leave only blocks that are wanted. A full disk leaves the pack as it is."""
    digests = _digests_of(pack)
    kept = [(i, digest) for i, digest in enumerate(digests) if digest in wanted]
    if not kept:
        pack.unlink(missing_ok=True)
    elif len(kept) < len(digests):
        new = pack.with_name(pack.name + NEW)
        try:
            with pack.open("rb") as file, new.open("wb") as written:
                for i, _ in kept:
                    file.seek(i * BLOCK)
                    written.write(file.read(BLOCK))
                written.write(_index(digest for _, digest in kept))
            new.rename(pack)
        except OSError:
            new.unlink(missing_ok=True)
