"""Makes a step exist: waits for the files of all ranks and writes the manifest, then removes old steps."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from threading import Lock

from pulsetrain.checkpoint.checkpoint_events import CheckpointEvents
from pulsetrain.checkpoint.memory.slots import SlotInfo
from pulsetrain.checkpoint.storage.manifest import MANIFEST, REPLACED, Checkpoints, Manifest, Save, folder_of
from pulsetrain.checkpoint.storage.polling import Poller
from pulsetrain.checkpoint.storage.rank_files import receipts_of, tables_of
from pulsetrain.core.errors import CheckpointError, CorruptData
from pulsetrain.protocol.messages import NOT_READ

COMMIT_TIMEOUTS = (
    2  # rank 0 may wait so often: for the receipts of all ranks, and for the manifest's own file
)
PATIENT_READS = 3  # of a storage, before what can be read of it is taken. A moment later it may answer again
LOOKED_AT = 8  # newest checkpoints: a job may have run with another number of ranks meanwhile


class Committer:
    """Commits steps of one job, and knows the newest committed ones. Thread-safe."""

    def __init__(
        self, checkpoints: Checkpoints, poller: Poller, events: CheckpointEvents, *, timeout_s: float
    ) -> None:
        self._checkpoints, self._poller, self._events = checkpoints, poller, events
        self._timeout_s = self._tables_s = timeout_s
        self._newest: tuple[Manifest, ...] = ()
        self._stored_attempt = NOT_READ
        self._reads = 0
        self._given_up: deque[Save] = deque(maxlen=LOOKED_AT)
        self._in_use: set[Save] = set()  # saves that wait to be committed
        self._replaced: deque[Manifest] = deque(maxlen=REPLACED)
        self._lock = Lock()
        self._changing = Lock()  # a manifest must not be written while packs are removed

    @property
    def newest(self) -> tuple[Manifest, ...]:
        """The two newest committed checkpoints of each number of ranks, newest first."""
        return self._newest

    def wait_less(self, timeout_s: float) -> None:
        """From now on wait at most so long for the tables of all ranks."""
        self._tables_s = min(self._tables_s, timeout_s)

    @property
    def stored_attempt(self) -> int:
        """The newest attempt that had written anything when storage was read. -1: none. `NOT_READ` before."""
        return self._stored_attempt

    def read_newest(self) -> None:
        """Look what storage holds. A storage that refuses is an event, and `stored_attempt` says so.

        Where it refuses to read some of its checkpoints again and again, the others are taken.
        """
        unreadable: dict[int, str] = {}
        try:
            newest = self._read(unreadable)
            attempt = self._checkpoints.newest_attempt()
        except Exception as error:  # noqa: BLE001 - whatever a storage backend raises is an event
            self._events.event("storage_unreadable", {"error": str(error)})
            return
        if unreadable:
            detail = {"steps": sorted(unreadable), "error": next(iter(unreadable.values()))}
            self._events.event("checkpoints_unreadable", detail)
        for manifest in newest:
            self.remember(manifest)
        self._stored_attempt = attempt

    def _read(self, unreadable: dict[int, str]) -> list[Manifest]:
        """The newest checkpoints. `unreadable` gets those that are left out. Raises what storage raises."""
        self._reads += 1
        partly = unreadable if self._reads > PATIENT_READS else None
        newest = self._checkpoints.committed(newest=LOOKED_AT, unreadable=partly)
        if unreadable and not newest:
            raise OSError(next(iter(unreadable.values())))
        return newest

    def commit(self, info: SlotInfo) -> Manifest:
        """Write the manifest once every rank has written its receipt. Only rank 0's agent calls this.

        Where a later save of the step was committed meanwhile, that one is returned, and stays. Raises
        `CheckpointError` where a rank is late, or content is missing or gone.
        """
        save = (info.step, info.attempt, info.edition)
        with self._lock:
            self._in_use.add(save)
        try:
            return self._commit(info)
        except CheckpointError as error:
            raise CheckpointError(f"{error}{self._unequal(info)}") from error
        finally:
            with self._lock:
                self._in_use.discard(save)

    def _commit(self, info: SlotInfo) -> Manifest:
        what = f"of step {info.step}"
        table_files = tables_of(self._checkpoints, info, self._tables_s)
        tables = self._poller.wait(table_files.look, self._tables_s, f"tables {what}")
        receipt_files = receipts_of(self._checkpoints, info, self._timeout_s)
        receipts = self._poller.wait(receipt_files.look, self._timeout_s, f"receipts {what}")
        blobs = {content: blob for receipt in receipts for content, blob in receipt.blobs.items()}
        missing = {segment.hash for table in tables for segment in table.segments} - set(blobs)
        if missing:
            raise CheckpointError(f"step {info.step}: nobody wrote {len(missing)} segments")
        manifest = Manifest(
            job=self._checkpoints.job,
            step=info.step,
            attempt=info.attempt,
            edition=info.edition,
            run=self._checkpoints.run,
            world=info.world,
            created_ns=time.time_ns(),
            written_bytes=sum(receipt.written_bytes for receipt in receipts),
            tables={table.rank: table for table in tables},
            blobs=blobs,
        )
        return self._poller.wait(
            lambda: self._write_manifest(manifest, info), self._timeout_s, f"manifest {what}"
        )

    def _write_manifest(self, manifest: Manifest, info: SlotInfo) -> Manifest:
        path = self._checkpoints.path(f"{folder_of(info.step)}/{MANIFEST}")
        with self._changing:  # a pack of an earlier step may be gone since a rank decided to refer to it
            before = self._own_manifest(info.step)
            if before is not None and before.edition != info.edition and self._covers(before, info):
                return before
            lost = self._checkpoints.lost_files(manifest)
            if lost:
                raise CheckpointError(f"step {info.step} refers to what is gone: {', '.join(lost)}")
            self._checkpoints.storage.put(path, [manifest.encode()])
            if before is not None:
                self._replaced.append(before)
        return manifest

    def _unequal(self, info: SlotInfo) -> str:
        """What may be the cause where ranks have saved a step unequally often."""
        ranks = self._checkpoints.saved_unequally(info.step, info.attempt, info.edition)
        if not ranks and not info.edition:
            return ""
        whose = f"; of rank {ranks[0]} another save of it is there" if ranks else ""
        return f"{whose}; has every rank saved this step equally often, also at the end (SIGTERM)?"

    def _own_manifest(self, step: int) -> Manifest | None:
        """What is committed of the step. Raises where another run that goes on beside this one did that."""
        try:
            there = self._checkpoints.manifest(step)
        except CorruptData:
            return None
        if there is not None and self._checkpoints.is_foreign(there):
            raise CheckpointError(
                f"step {step}: another run writes the checkpoints of job {self._checkpoints.job} in this "
                "storage too: give --job another name"
            )
        return there

    def await_commit(self, info: SlotInfo) -> Manifest:
        """The manifest that rank 0's agent writes, or that of a later save of the step.

        Raises `CheckpointError` where it is late.
        """

        def look() -> Manifest | None:
            manifest = self._checkpoints.manifest(info.step)
            return manifest if manifest is not None and self._covers(manifest, info) else None

        return self._poller.wait(look, COMMIT_TIMEOUTS * self._timeout_s, f"manifest of step {info.step}")

    def _covers(self, manifest: Manifest, info: SlotInfo) -> bool:
        """Whether it is of this save, or of a later one of the step in the same run and attempt."""
        same = (manifest.attempt, manifest.run) == (info.attempt, self._checkpoints.run)
        return same and manifest.edition >= info.edition

    def remember(self, manifest: Manifest) -> None:
        """Count a step as committed."""
        with self._lock:
            others = [m for m in self._newest if m.step != manifest.step]
            known = sorted([manifest, *others], key=lambda m: m.recency, reverse=True)
            worlds = {m.world: [n for n in known if n.world == m.world] for m in known}
            self._newest = tuple(m for m in known if m in worlds[m.world][:2])[:LOOKED_AT]

    def still_stored(self) -> list[Manifest]:
        """The newest committed checkpoints that were not removed meanwhile. Others are forgotten."""
        kept = self._checkpoints.kept(self._newest)
        self._forget(m for m in self._newest if m not in kept)
        return kept

    def _forget(self, gone: Iterable[Manifest]) -> None:
        gone = list(gone)
        with self._lock:
            self._newest = tuple(m for m in self._newest if m not in gone)

    def remove_old(self, committed: int, *, keep_last: int, keep_every: int) -> None:
        """Remove the steps that neither `keep_last` nor `keep_every` keeps. That is an event.

        The step that was just `committed` stays. What storage refuses is another event.
        """
        refused: dict[int, str] = {}
        try:
            removed = self._removed(committed, keep_last, keep_every, refused)
        except Exception as error:  # noqa: BLE001 - whatever a storage backend raises is an event
            self._events.event("storage_unreadable", {"error": str(error)})
            return
        self._forget(m for m in self._newest if m.step in removed)
        if removed:
            self._events.event("checkpoints_removed", {"steps": removed})
        if refused:
            detail = {"steps": list(refused), "error": next(iter(refused.values()))}
            self._events.event("checkpoints_not_removed", detail)

    def _removed(self, committed: int, keep_last: int, keep_every: int, refused: dict[int, str]) -> list[int]:
        """See `remove_old`. `refused` gets the steps that stay, each with the reason."""
        with self._changing:
            with self._lock:
                in_use = set(self._in_use)
            return self._checkpoints.retain(
                last=keep_last,
                every=keep_every,
                spare=committed,
                in_use=in_use,
                replaced=self._replaced,
                refused=lambda step, error: refused.update({step: str(error)}),
            )

    def give_up(self, info: SlotInfo) -> None:
        """A step was not committed and will not be. Remove its files, or the disk fills with such steps.

        Ranks that are late may write some of them once more. These go with the next step that is given up.
        """
        with self._changing:
            self._given_up.append((info.step, info.attempt, info.edition))
            try:
                for step, attempt, edition in self._given_up:
                    self._checkpoints.remove_abandoned(step, attempt, edition)
            except Exception as error:  # noqa: BLE001 - whatever a storage backend raises is an event
                self._events.event("storage_unreadable", {"error": str(error)})
