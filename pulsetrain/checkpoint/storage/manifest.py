"""A committed checkpoint: which bytes of which files make up each rank's state.

A step's folder holds three files for each rank: a table (what its bytes are, by content hash), a pack (the
bytes that this rank wrote) and a receipt (where each content hash is). The manifest joins them and is written
last. A step without a whole manifest does not exist. A manifest may refer to packs of an earlier step:
content that did not change is stored once.
"""

from __future__ import annotations

import builtins
import json
import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NotRequired, TypedDict

import xxhash

from pulsetrain.checkpoint.memory.layout import Layout, decode
from pulsetrain.checkpoint.memory.slots import history_of
from pulsetrain.checkpoint.storage.backend import Storage
from pulsetrain.core.errors import CorruptData, Unavailable
from pulsetrain.core.progress import Report, unseen

FORMAT = 1
CLOCKS_DIFFER_NS = 5 * 10**9  # by this much at most, of the nodes of two runs
MANIFEST = "manifest.json"
REPLACED = 2  # manifests of steps that were saved again, to which a save on its way may refer
MOST_REMOVED = 500  # superseded files at once: no commit goes on meanwhile
READ_BYTES = 64 << 20  # of a segment at once

Save = tuple[int, int, int]
"""Step, attempt and edition of one save."""
BlobJson = tuple[str, int, int]
"""File, offset and bytes of a blob, as files have it (a JSON array)."""


class TableJson(TypedDict):
    """A table as files have it. `sizes` are those of layout, values, payload. Old files lack the last two."""

    rank: int
    sizes: tuple[int, int, int]
    segments: list[tuple[int, int, str]]
    replicated: NotRequired[bool]
    shard: NotRequired[int]


class ManifestJson(TypedDict):
    """The body of a manifest file."""

    format: int
    job: str
    step: int
    attempt: int
    world: int
    created_ns: int
    written_bytes: int
    ranks: list[TableJson]
    edition: NotRequired[int]
    run: NotRequired[str]
    blobs: dict[str, BlobJson]


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A part of a rank's bytes, identified by the xxh3-128 of its content."""

    offset: int
    bytes: int
    hash: str


@dataclass(frozen=True, kw_only=True)
class Blob:
    """Where some content is stored. `file` is relative to the job's folder."""

    file: str
    offset: int
    bytes: int

    def as_json(self) -> BlobJson:
        """As files have it."""
        return self.file, self.offset, self.bytes

    @classmethod
    def parse(cls, raw: BlobJson) -> Blob:
        """What `as_json` gave."""
        file, offset, size = raw
        return cls(file=file, offset=offset, bytes=size)


@dataclass(frozen=True, kw_only=True)
class Table:
    """One rank's bytes: sizes as in its arena slot, and the segments that cover all but padding.

    `replicated`: every rank has saved the same state. `shard` is as in the slot.
    """

    rank: int
    layout_bytes: int
    values_bytes: int
    payload_bytes: int
    segments: tuple[Segment, ...]
    replicated: bool = False
    shard: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of content, before deduplication."""
        return sum(s.bytes for s in self.segments)

    def as_json(self) -> TableJson:
        """As files have it."""
        return TableJson(
            rank=self.rank,
            sizes=(self.layout_bytes, self.values_bytes, self.payload_bytes),
            segments=[(s.offset, s.bytes, s.hash) for s in self.segments],
            replicated=self.replicated,
            shard=self.shard,
        )

    def encode(self) -> builtins.bytes:
        """As JSON."""
        return json.dumps(self.as_json()).encode()

    @classmethod
    def parse(cls, raw: TableJson) -> Table:
        """What `as_json` gave."""
        layout, values, payload = raw["sizes"]
        return cls(
            rank=raw["rank"],
            layout_bytes=layout,
            values_bytes=values,
            payload_bytes=payload,
            segments=tuple(Segment(offset=o, bytes=b, hash=h) for o, b, h in raw["segments"]),
            replicated=raw.get("replicated", False),
            shard=raw.get("shard", 0),
        )


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """All ranks of one step. `written_bytes` were stored for it. The rest was there already or is shared.

    `edition` is as in the slots. `run` saved it, see `Checkpoints`.
    """

    job: str
    step: int
    attempt: int
    world: int
    created_ns: int
    written_bytes: int
    tables: Mapping[int, Table]
    blobs: Mapping[str, Blob] = field(repr=False)
    edition: int = 0
    run: str = ""

    @property
    def logical_bytes(self) -> int:
        """Bytes of all ranks together, before deduplication."""
        return sum(t.bytes for t in self.tables.values())

    @property
    def unique_bytes(self) -> int:
        """Bytes of distinct content."""
        return sum(b.bytes for b in self.blobs.values())

    @property
    def order(self) -> tuple[int, int]:
        """By which one checkpoint is newer than another: attempt, then step."""
        return self.attempt, self.step

    @property
    def recency(self) -> tuple[int, int, int]:
        """As `order`. What was saved before the script went back in its attempt is older."""
        return self.attempt, history_of(self.edition), self.step

    @property
    def files(self) -> frozenset[str]:
        """Every pack it needs."""
        return frozenset(b.file for b in self.blobs.values())

    def encode(self) -> bytes:
        """JSON with a checksum over itself."""
        body = ManifestJson(
            format=FORMAT,
            job=self.job,
            step=self.step,
            attempt=self.attempt,
            world=self.world,
            created_ns=self.created_ns,
            written_bytes=self.written_bytes,
            edition=self.edition,
            run=self.run,
            ranks=[table.as_json() for _, table in sorted(self.tables.items())],
            blobs={content: blob.as_json() for content, blob in sorted(self.blobs.items())},
        )
        text = json.dumps(body, separators=(",", ":"))
        return json.dumps({"checksum": xxhash.xxh3_128_hexdigest(text.encode()), "body": text}).encode()


def parse_manifest(data: bytes) -> Manifest:
    """The manifest in a file. Raises `CorruptData` for anything but a whole manifest of this format."""
    try:
        outer = json.loads(data)
        if xxhash.xxh3_128_hexdigest(outer["body"].encode()) != outer["checksum"]:
            raise CorruptData("checkpoint manifest: checksum does not match")
        raw: ManifestJson = json.loads(outer["body"])
        if raw["format"] != FORMAT:
            raise CorruptData(f"checkpoint manifest of format {raw['format']}; this reads {FORMAT}")
        return Manifest(
            job=raw["job"],
            step=raw["step"],
            attempt=raw["attempt"],
            world=raw["world"],
            created_ns=raw["created_ns"],
            written_bytes=raw["written_bytes"],
            edition=raw.get("edition", 0),
            run=raw.get("run", ""),
            tables={row["rank"]: Table.parse(row) for row in raw["ranks"]},
            blobs={content: Blob.parse(row) for content, row in raw["blobs"].items()},
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptData(f"checkpoint manifest cannot be read: {error!r}") from error


def folder_of(step: int) -> str:
    """The name of a step's folder. Names sort as steps do."""
    return f"step-{step:012d}"


def stem_of(attempt: int, rank: int, edition: int = 0, run: str = "") -> str:
    """What the names of a rank's files in a step's folder begin with.

    Each run and attempt has other names, and each save of the step in it. So nothing overwrites a pack.
    """
    again, whose = f".{edition}" if edition else "", f"-{run}" if run else ""
    return f"a{attempt}{again}{whose}-rank-{rank:05d}"


def _attempt_of(names: Iterable[str]) -> int:
    """The newest attempt of which a step's folder has files, -1 for none."""
    return max((save[0] for save in map(_save_of, names) if save), default=-1)


def _save_of(name: str) -> tuple[int, int, str] | None:
    """Attempt, edition and run of a rank's file. None for another file."""
    match = re.match(r"a(\d+)(?:\.(\d+))?(?:-([0-9a-f]+))?-rank-", name)
    return (int(match[1]), int(match[2] or 0), match[3] or "") if match else None


def step_of(folder: str) -> int | None:
    """The step of a folder's name. None for another name."""
    digits = folder.removeprefix("step-")
    return int(digits) if digits != folder and digits.isdigit() else None


def _raise(_: int, error: Exception) -> None:
    raise error


class Checkpoints:
    """The committed checkpoints of one job in a storage.

    `run` tells this run of the job from others (hexadecimal digits, "" for none). Their files have other
    names, and what they have committed since this one began is theirs.
    """

    def __init__(self, storage: Storage, job: str) -> None:
        self.storage = storage
        self.job = job
        self.run = ""
        self._began_ns = time.time_ns()
        self._before: frozenset[tuple[str, int]] = frozenset()

    def begin_run(self, run: str, before: Iterable[Manifest] = ()) -> None:
        """From now on write for this run. `before` are manifests that are known to be there already."""
        if run != self.run:
            self.run, self._began_ns = run, time.time_ns()
            self._before = frozenset((manifest.run, manifest.created_ns) for manifest in before)

    def is_foreign(self, manifest: Manifest) -> bool:
        """Whether another run has committed it that goes on beside this one.

        What was known before this one began is not. For the rest, the clock of who committed it says it.
        """
        another = bool(self.run) and manifest.run not in ("", self.run)
        if (manifest.run, manifest.created_ns) in self._before:
            return False
        return another and manifest.created_ns > self._began_ns + CLOCKS_DIFFER_NS

    def path(self, file: str) -> str:
        """Path in the storage of a file that a blob names."""
        return f"{self.job}/{file}"

    def steps(self) -> list[int]:
        """Steps with a folder, committed or not, in order."""
        return [s for name in self.storage.list(self.job) if (s := step_of(name)) is not None]

    def manifest(self, step: int) -> Manifest | None:
        """The step's manifest. None where the step is not committed. Raises `CorruptData`."""
        try:
            return parse_manifest(self.storage.read(self.path(f"{folder_of(step)}/{MANIFEST}")))
        except FileNotFoundError:
            return None

    def newest_attempt(self) -> int:
        """The newest attempt that has written anything here, committed or not. -1: none has."""
        names = (name for step in self.steps() for name in self.storage.list(self.path(folder_of(step))))
        return _attempt_of(names)

    def committed(self, *, newest: int = 0, unreadable: dict[int, str] | None = None) -> list[Manifest]:
        """Whole manifests, those of the newest attempt first, and of one attempt the newest step first.

        An attempt may go on from an earlier step than others have reached, or begin anew. What it has written
        since is newer all the same. `newest` limits how many. A damaged one does not count. Raises `OSError`
        for one that storage refuses to read. With `unreadable`, that notes its step and the reason instead.
        """
        ahead = sorted(self._with_manifest(), reverse=True)
        found: list[Manifest] = []
        for attempt, history, step in ahead:
            if newest and sum(m.recency >= (attempt, history, step) for m in found) >= newest:
                break
            try:
                manifest = self.manifest(step)
            except CorruptData:
                continue
            except OSError as error:
                if unreadable is None:
                    raise
                unreadable[step] = str(error)
                continue
            if manifest is not None:
                found.append(manifest)
        found.sort(key=lambda m: m.recency, reverse=True)
        return found[:newest] if newest else found

    def _with_manifest(self) -> Iterator[tuple[float, int, int]]:
        """Steps with a manifest, each behind the newest attempt and history that it may be of."""
        for step in self.steps():
            names = self.storage.list(self.path(folder_of(step)))
            if MANIFEST in names:
                saves = [save for save in map(_save_of, names) if save]
                attempt, edition, _ = max(saves, default=(math.inf, 0, ""))
                yield attempt, history_of(edition), step

    def lost_files(self, manifest: Manifest) -> list[str]:
        """Packs that the manifest needs and the storage does not have."""
        folders = {file.partition("/")[0] for file in manifest.files}
        there = {f"{f}/{name}" for f in folders for name in self.storage.list(self.path(f))}
        return sorted(manifest.files - there)

    def kept(self, manifests: Iterable[Manifest]) -> list[Manifest]:
        """Those of `manifests` whose step is still committed."""
        return [m for m in manifests if self._has_manifest(m.step)]

    def read_segment(
        self,
        manifest: Manifest,
        segment: Segment,
        target: memoryview,
        moved: Callable[[], None] = lambda: None,
    ) -> int:
        """Fill `target` with one segment, check it, and return the bytes read.

        `moved` is called for each part. Raises `CorruptData` for content that is gone or does not have its
        hash, `Unavailable` for a storage that refuses.
        """
        blob = manifest.blobs.get(segment.hash)
        if blob is None:
            raise CorruptData(f"step {manifest.step}: content {segment.hash} is nowhere")
        try:
            for at in range(0, len(target), READ_BYTES):
                self.storage.read_into(self.path(blob.file), blob.offset + at, target[at : at + READ_BYTES])
                moved()
        except FileNotFoundError as error:
            raise CorruptData(f"{blob.file}: {error.strerror or error}") from error
        except OSError as error:
            raise Unavailable(f"{blob.file}: {error}") from error
        if xxhash.xxh3_128_hexdigest(target) != segment.hash:
            raise CorruptData(f"{blob.file}: bytes {blob.offset} to {blob.offset + blob.bytes} are damaged")
        return segment.bytes

    def layout(self, manifest: Manifest, rank: int) -> tuple[Layout, bytes]:
        """A rank's layout, and the JSON of its values. Raises as `read_segment` does."""
        table = manifest.tables[rank]
        head = bytearray(table.segments[0].bytes)
        self.read_segment(manifest, table.segments[0], memoryview(head))
        return decode(bytes(head[: table.layout_bytes])), bytes(head[table.layout_bytes :])

    def verify(self, manifest: Manifest, report: Report = unseen) -> list[str]:
        """What is wrong with the stored bytes, one line each. Empty: all is there and has its hash.

        `report` takes the bytes that were read.
        """
        done = 0
        wrong = [f"rank {r} is missing" for r in range(manifest.world) if r not in manifest.tables]
        segments = {s.hash: s for t in manifest.tables.values() for s in t.segments}
        for segment in segments.values():
            try:
                self.read_segment(manifest, segment, memoryview(bytearray(segment.bytes)))
            except (CorruptData, Unavailable) as error:
                wrong.append(str(error))
            done += segment.bytes
            report(done)
        return wrong

    def retain(
        self,
        *,
        last: int,
        every: int,
        spare: int = -1,
        in_use: Collection[Save] = (),
        replaced: Iterable[Manifest] = (),
        refused: Callable[[int, Exception], None] = _raise,
    ) -> list[int]:
        """Remove steps that neither `last` nor `every` keeps, and return them. The step `spare` stays.

        `last` counts from the newest, see `committed`. Steps beyond the newest stay: an earlier attempt got
        so far, and perhaps somebody wants to go on from there. Steps without a manifest go too where they
        are older than the newest step. One whose manifest cannot be read stays: it is damaged, or of
        another version, and its packs may be whole. A pack that a kept manifest refers to stays. So does
        all that another run writes which goes on beside this one.

        From steps that stay, files go that this run wrote for them before it saved them again. Those of saves
        `in_use` stay, and packs that `replaced` manifests needed: a save on its way may refer to them.

        A step that cannot be removed is given to `refused` with the error, and the others are removed.
        """
        committed = self.committed()
        foreign = [m for m in committed if self.is_foreign(m)]
        manifests = [m for m in committed if m not in foreign]
        keep = [
            m
            for i, m in enumerate(manifests)
            if i < last or m.step == spare or (every and m.step % every == 0)
        ]
        if not keep:
            return []
        keep += foreign
        stay = [m for m in committed if m in keep or m.step >= manifests[0].step]
        needed = frozenset(f for m in stay for f in m.files)
        kept_steps = {m.step for m in keep} | self._begun_by({m.run for m in foreign})
        read = {m.step for m in committed}
        old = [s for s in self.steps() if s < manifests[0].step and s not in kept_steps]
        gone = [s for s in old if s in read or not self._has_manifest(s)]
        removed = [step for step in gone if self._is_removed(step, needed, refused)]
        needed |= {f for m in replaced for f in m.files}
        for i, manifest in enumerate(manifests):  # not all: each is a call to storage
            if manifest.step in kept_steps and (i < last + REPLACED or manifest.step == spare):
                self._remove_superseded(manifest, needed, in_use)
        return removed

    def _remove_superseded(
        self, manifest: Manifest, needed: Collection[str], in_use: Collection[Save]
    ) -> None:
        """Remove what this run wrote of earlier saves of the manifest's step."""
        folder = folder_of(manifest.step)
        names = self.storage.list(self.path(folder)) if manifest.run == self.run else []
        gone = []
        for name in names:
            save = _save_of(name)
            if save is None or save[2] != self.run or save[:2] >= (manifest.attempt, manifest.edition):
                continue
            if (manifest.step, *save[:2]) not in in_use and f"{folder}/{name}" not in needed:
                gone.append(name)
        for name in gone[:MOST_REMOVED]:
            self.storage.remove(self.path(f"{folder}/{name}"))

    def _begun_by(self, runs: Collection[str]) -> set[int]:
        """Steps of which these runs have written anything."""
        if not runs:
            return set()
        names = {step: self.storage.list(self.path(folder_of(step))) for step in self.steps()}
        return {
            step
            for step, some in names.items()
            if any(save[2] in runs for save in map(_save_of, some) if save)
        }

    def remove_abandoned(self, step: int, attempt: int, edition: int = 0) -> None:
        """Remove what an attempt has written of one save of a step that it has not committed.

        A pack that a committed step refers to stays.
        """
        folder = folder_of(step)
        mine = [
            n for n in self.storage.list(self.path(folder)) if _save_of(n) == (attempt, edition, self.run)
        ]
        committed = self.committed() if mine else []
        mine_committed = (attempt, step, edition, self.run)
        if any((*m.order, m.edition, m.run) == mine_committed for m in committed):
            return
        needed = {file for m in committed for file in m.files}
        for name in mine:
            if f"{folder}/{name}" not in needed:
                self.storage.remove(self.path(f"{folder}/{name}"))
        if mine and not self.storage.list(self.path(folder)):
            self.storage.remove(self.path(folder))

    def saved_unequally(self, step: int, attempt: int, edition: int) -> list[int]:
        """Ranks that have written another save of the step in this attempt, and not this one."""
        ranks: dict[int, set[int]] = {}
        for name in self.storage.list(self.path(folder_of(step))):
            save, suffix = _save_of(name), name.partition("-rank-")[2]
            if save is not None and (save[0], save[2]) == (attempt, self.run):
                ranks.setdefault(int(suffix.partition(".")[0]), set()).add(save[1])
        return sorted(rank for rank, editions in ranks.items() if edition not in editions)

    def _has_manifest(self, step: int) -> bool:
        return MANIFEST in self.storage.list(self.path(folder_of(step)))

    def _is_removed(
        self, step: int, needed: Collection[str], refused: Callable[[int, Exception], None]
    ) -> bool:
        """Remove a step. False where storage has refused that."""
        try:
            self._remove(step, needed)
        except Exception as error:  # noqa: BLE001 - whatever a storage backend raises
            refused(step, error)
            return False
        return True

    def _remove(self, step: int, needed: Iterable[str]) -> None:
        folder = folder_of(step)
        names = self.storage.list(self.path(folder))
        spared = [n for n in names if f"{folder}/{n}" in needed]
        self.storage.remove(self.path(f"{folder}/{MANIFEST}"))  # first: from here on the step does not exist
        if not spared:
            self.storage.remove(self.path(folder))
            return
        for name in names:
            if name not in spared:
                self.storage.remove(self.path(f"{folder}/{name}"))
