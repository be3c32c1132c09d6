"""The checkpoints that a job's script writes and reads by itself, as its ranks report them.

They survive every restart, because they lie on the script's own disk. The job's newest one is the newest that
all the ranks that usually write have written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pulsetrain.protocol.late_rows import column, tells
from pulsetrain.protocol.messages import OwnCheckpoint, RankStatus

KEPT = 16  # checkpoints of the job, and files of each rank, that are remembered
COMPARED = 8  # earlier checkpoints that tell which ranks usually write
MAX_FILES = 64  # files that one launch tells its ranks


@dataclass(frozen=True, kw_only=True)
class JobCheckpoint:
    """One checkpoint of the script's own. `bytes` and `files` are those of all `ranks` that wrote it.

    `complete`: every rank that usually writes has written it. `ignored`: the script is known not to go on
    from its checkpoints.
    """

    attempt: int
    step: int
    bytes: int
    files: int
    path: str
    written_ns: int
    ranks: tuple[int, ...]
    complete: bool
    ignored: bool = False

    @property
    def resumable_step(self) -> int:
        """The step from which a restart may go on, -1 where it does not."""
        return self.step if self.complete and not self.ignored else -1

    def row(self, now_ns: int) -> dict[str, object]:
        """Return it as the API shows it."""
        return {
            "step": self.step,
            "attempt": self.attempt,
            "bytes": self.bytes,
            "files": self.files,
            "path": self.path,
            "written_ns": self.written_ns,
            "age_s": round(max(0, now_ns - self.written_ns) / 1e9, 3),
            "ranks": list(self.ranks),
            "complete": self.complete,
        }


class OwnCheckpoints:
    """All that one job's script has written. Kept over its attempts.

    `ignored`: a restarted attempt began anew although a checkpoint was there. So the script does not resume
    by itself. `proven`: one went on from it.
    """

    def __init__(self) -> None:
        self.ignored = self.proven = False
        self._written: dict[tuple[int, int], dict[int, OwnCheckpoint]] = {}  # by (attempt, step), then rank
        self._passed: set[tuple[int, int]] = set()
        self._ranks: dict[int, set[int]] = {}  # ranks that were heard, by attempt
        self._files: dict[int, dict[str, OwnCheckpoint]] = {}  # by rank, then path, oldest first

    def note(self, attempt: int, statuses: Sequence[RankStatus]) -> None:
        """Take what ranks of an attempt have reported."""
        if attempt not in self._ranks:
            kept = {key[0] for key in self._written}
            self._ranks = {a: ranks for a, ranks in self._ranks.items() if a in kept} | {attempt: set()}
        self._ranks[attempt].update(column(statuses, "rank"))
        if not tells(statuses, "saved"):
            return
        for status in statuses:
            for own in status.saved:
                self._note(attempt, status.rank, own)

    def undecided(self, attempt: int) -> bool:
        """Return whether `look` may find that the job's first checkpoint is complete."""
        first = min(self._written, default=None)
        return first is not None and first not in self._passed and first[0] == attempt

    def look(self, attempt: int, statuses: Collection[RankStatus]) -> None:
        """Take where all ranks of the present attempt are.

        The job's first checkpoint has no earlier one to compare with. It is complete once every rank has gone
        on to a later step.
        """
        if not self.undecided(attempt) or not statuses:
            return
        first = min(self._written)
        if all(status.last_step > first[1] for status in statuses):
            self._passed.add(first)

    def finished(self) -> None:
        """Every rank has ended with status 0. So the job's first checkpoint is complete, as in `look`."""
        if self._written:
            self._passed.add(min(self._written))

    def started(self, attempt: int, resumed_step: int, *, by_script: bool = True) -> None:
        """An attempt has done its first step. It went on from `resumed_step`, -1: from nothing.

        `by_script`: the script found that step by itself.
        A checkpoint from which an attempt went on is complete, also where the one that wrote it ended early.
        """
        first = min(self._written, default=None)
        if first is not None and first[0] < attempt and first[1] == resumed_step:
            self._passed.add(first)
        if self.newest_before(attempt) is not None:
            self.ignored = resumed_step < 0
            self.proven = resumed_step >= 0 and (by_script or self.proven)

    def newest_before(self, attempt: int) -> JobCheckpoint | None:
        """Return the newest complete one of earlier attempts, None for none."""
        keys = sorted((key for key in self._written if key[0] < attempt), reverse=True)
        complete = next((key for key in keys if self._complete(key)), None)
        return self._of(complete, complete=True) if complete is not None else None

    def shortest_gap(self, attempt: int) -> int:
        """Return the fewest steps that lay between two saves of earlier attempts, or before the only one."""
        gaps = [
            step - before
            for (number, before), (following, step) in pairwise(sorted(self._written))
            if number == following < attempt
        ]
        return min(
            gaps, default=min((step + 1 for number, step in self._written if number < attempt), default=0)
        )

    def newest(self) -> JobCheckpoint | None:
        """Return the newest complete one, else the newest, None for none."""
        keys = sorted(self._written, reverse=True)
        complete = next((key for key in keys if self._complete(key)), None)
        if complete is not None:
            return self._of(complete, complete=True)
        return self._of(keys[0], complete=False) if keys else None

    def begun_step(self, attempt: int) -> int:
        """Return the newest step of which any rank of this attempt has written a part, -1 for none."""
        return max((step for number, step in self._written if number == attempt), default=-1)

    def can_resume(self) -> bool:
        """Return whether a restart may go on from a checkpoint of the script's own.

        That the script reads it is not known before the first restart. After one it is.
        """
        return self.resumable_step() >= 0

    def resumable_step(self) -> int:
        """Return the step of the checkpoint for which `can_resume` holds, -1 for none."""
        newest = self.newest()
        return newest.resumable_step if newest is not None else -1

    def files(self, ranks: Iterable[int]) -> tuple[OwnCheckpoint, ...]:
        """Return the files that these ranks may read after a restart, newest first, `MAX_FILES` at most.

        They are those that the same ranks wrote, and those of the first rank that writes, which often writes
        for all.
        """
        writers = {*ranks} & self._files.keys() | {min(self._files, default=-1)}
        by_path: dict[str, OwnCheckpoint] = {}
        for rank in writers:
            for path, own in self._files.get(rank, {}).items():
                if path not in by_path or own.written_ns > by_path[path].written_ns:
                    by_path[path] = own
        newest_first = sorted(by_path.values(), key=lambda own: own.written_ns, reverse=True)
        return tuple(newest_first[:MAX_FILES])

    def _note(self, attempt: int, rank: int, own: OwnCheckpoint) -> None:
        by_rank = self._written.setdefault((attempt, own.step), {})
        if by_rank.get(rank) == own:
            return
        by_rank[rank] = own
        files = self._files.setdefault(rank, {})
        files.pop(own.path, None)
        files[own.path] = own
        _forget_first(files)
        while len(self._written) > KEPT:
            oldest, next_oldest = sorted(self._written)[:2]
            if self._complete(next_oldest):
                self._passed.add(next_oldest)  # what it was compared with is forgotten
            del self._written[oldest]

    def _complete(self, key: tuple[int, int]) -> bool:
        """Return whether every rank that usually writes has written this one.

        A world that has shrunk has no longer all of these ranks.
        """
        earlier = [self._written[k] for k in sorted(self._written) if k < key][-COMPARED:]
        if not earlier:
            return key in self._passed
        counts = Counter(rank for by_rank in earlier for rank in by_rank)
        usual = {rank for rank, count in counts.items() if 2 * count >= len(earlier)}
        return usual & self._ranks[key[0]] <= self._written[key].keys()

    def _of(self, key: tuple[int, int], *, complete: bool) -> JobCheckpoint:
        by_rank = self._written[key]
        newest = max(by_rank.values(), key=lambda own: own.written_ns)
        first = by_rank[min(by_rank)]
        return JobCheckpoint(
            attempt=key[0],
            step=key[1],
            bytes=sum(own.bytes for own in by_rank.values()),
            files=sum(own.files for own in by_rank.values()),
            path=first.path,
            written_ns=newest.written_ns,
            ranks=tuple(sorted(by_rank)),
            complete=complete,
            ignored=self.ignored,
        )


def _forget_first(files: dict[str, OwnCheckpoint]) -> None:
    while len(files) > KEPT:
        del files[next(iter(files))]
