"""A folder of PyTorch Flight Recorder dumps: one file for each rank, pickle or JSON.

Nothing in the files is executed. A file that is not a dump, or is a dump of another job, is left out with a
note.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, cast

from pulsetrain.analytics.hangs.flight_dumps import (
    DEFAULT_GROUP,
    Dump,
    RawDump,
    group_configs,
    group_of,
    members_of,
    parse,
)
from pulsetrain.core.errors import CorruptData, UsageError

MAX_BYTES = 256 << 20  # a dump of 20,000 entries with stacks takes about 40 MiB
_PARSE_ERRORS = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)
_MAX_RANK_DIGITS = 8  # longer numbers in file names are times
_MAX_WORLD_PER_DUMP = 4  # ranks of the world for each dump; beyond that, a number was no rank


@dataclass(frozen=True)
class _DumpFile:
    """A dump as read, and parsed with what it says itself. Its rank may be wrong at this point."""

    name: str
    raw: RawDump
    dump: Dump


class _PlainUnpickler(pickle.Unpickler):
    """Reads only what needs no code: numbers, text, lists and dicts."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"names {module}.{name}, which no dump needs")

    def persistent_load(self, pid: object) -> NoReturn:
        raise pickle.UnpicklingError(f"refers to something outside the file ({pid!r})")


def load(folder: Path) -> tuple[list[Dump], list[str]]:
    """Return every readable dump in `folder`, sorted by rank, and a note for each file that was not used.

    Raises `UsageError` where there is no such folder or no dump in it.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: not a folder of Flight Recorder dumps")
    files: list[_DumpFile] = []
    notes: list[str] = []
    for path in sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith(".")):
        try:
            files.append(_read_file(path))
        except (CorruptData, OSError) as error:
            notes.append(f"{path.name}: {error}")
    files = _of_one_world(files, notes)
    if not files:
        reason = f" ({notes[0]})" if notes else ""
        raise UsageError(f"{folder}: no Flight Recorder dump in it{reason}")
    by_rank = _by_rank(files, notes)
    guess = any(file.dump.inferred for file in by_rank.values())
    members = _members_by_name(by_rank) if guess else {}
    dumps = {
        rank: file.dump if file.dump.rank == rank and not guess else parse(rank, file.raw, members)
        for rank, file in by_rank.items()
    }
    return [dumps[rank] for rank in sorted(dumps)], notes


def read(data: bytes) -> RawDump:
    """Return the dump in `data`, which is JSON or pickle. Raises `CorruptData` for anything else."""
    try:
        raw = json.loads(data) if data.lstrip()[:1] == b"{" else _PlainUnpickler(io.BytesIO(data)).load()
    except (
        pickle.UnpicklingError,
        ValueError,
        EOFError,
        IndexError,
        KeyError,
        TypeError,
        AttributeError,
    ) as error:
        raise CorruptData(f"not a Flight Recorder dump: {error}") from error
    except (MemoryError, OverflowError, RecursionError) as error:
        raise CorruptData("not a Flight Recorder dump: sizes in it are absurd") from error
    if not isinstance(raw, dict) or not {"entries", "pg_config", "pg_status"} & raw.keys():
        raise CorruptData("not a Flight Recorder dump: no entries, pg_config or pg_status in it")
    return cast(RawDump, raw)


def _read_file(path: Path) -> _DumpFile:
    """Read one file, checked as far as one dump alone can be. Raises `CorruptData` and `OSError`."""
    if (size := path.stat().st_size) > MAX_BYTES:
        raise CorruptData(f"not a Flight Recorder dump: {size:,} bytes, allowed: {MAX_BYTES:,}")
    raw = read(path.read_bytes())
    try:
        return _DumpFile(path.name, raw, parse(_rank(path.name, raw) or 0, raw, {}))
    except _PARSE_ERRORS as error:
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        raise CorruptData(f"a Flight Recorder dump with unsound values: {text}") from error


def _of_one_world(files: Sequence[_DumpFile], notes: list[str]) -> list[_DumpFile]:
    """Keep the dumps whose default group has the most common members. Add a note for each other dump."""
    worlds = [_world(file.raw) for file in files]
    known = Counter(w for w in worlds if w)
    if len(known) < 2:
        return list(files)
    usual = known.most_common(1)[0][0]
    kept = []
    for file, world in zip(files, worlds, strict=True):
        if world and world != usual:
            notes.append(f"{file.name}: of a world of {len(world)} ranks, the others of {len(usual)}")
        else:
            kept.append(file)
    return kept


def _world(raw: RawDump) -> tuple[int, ...]:
    """Return the members of the default group, empty where the dump does not name them."""
    default = (c for c in group_configs(raw).values() if c.get("desc") == DEFAULT_GROUP)
    return next((tuple(sorted(members_of(c))) for c in default), ())


# -- whose dump a file is --------------------------------------------------------------------------------


def _by_rank(files: Sequence[_DumpFile], notes: list[str]) -> dict[int, _DumpFile]:
    """Return the files by rank. Files of no known rank, and second dumps of a rank, get a note instead."""
    by_rank: dict[int, _DumpFile] = {}
    for file in files:
        rank = _rank(file.name, file.raw)
        if rank is None:
            notes.append(f"{file.name}: its rank is not known")
        elif rank in by_rank:
            notes.append(f"{file.name}: a second dump of rank {rank}")
        else:
            by_rank[rank] = file
    return by_rank


def _rank(name: str, raw: RawDump) -> int | None:
    """Return what the dump says itself, else the one rank in all its groups, else what the file name says."""
    if isinstance(raw.get("rank"), int):
        return int(raw["rank"])
    common = _common_members(raw)
    if len(common) == 1:
        return next(iter(common))
    fitting = [n for n in _numbers(name) if not common or n in common]
    return fitting[0] if fitting else None


def _numbers(name: str) -> list[int]:
    """Return the numbers in a file name, the most likely rank first.

    The order: after "rank"; at the end, where the recorder puts it; then right to left before the first dot.
    """
    numbers = re.findall(r"rank[_\-.]?(\d+)", name, re.IGNORECASE)[:1]
    numbers += re.findall(r"(\d+)$", re.sub(r"(\.[a-z]\w{0,6})+$", "", name, flags=re.IGNORECASE))
    numbers += reversed(re.findall(r"\d+", name.split(".", 1)[0]))
    return [int(n) for n in numbers if len(n) <= _MAX_RANK_DIGITS]


def _common_members(raw: RawDump) -> set[int]:
    """Return the ranks that are members of all groups of the dump."""
    sets = [set(members) for c in group_configs(raw).values() if (members := members_of(c))]
    return set.intersection(*sets) if sets else set()


def _members_by_name(by_rank: Mapping[int, _DumpFile]) -> dict[tuple[str, str], tuple[int, ...]]:
    """Return the members of groups by name and description, for dumps whose own `pg_config` lacks a group.

    They are taken from the `pg_config` of other dumps. Where none has the group, they are the ranks that
    recorded something in it and the ranks that left no dump. The default group has all ranks.
    """
    recorded: dict[tuple[str, str], set[int]] = {}
    for rank, file in by_rank.items():
        for group in {group_of(entry) for entry in file.raw.get("entries") or ()}:
            recorded.setdefault(group, set()).add(rank)
    present = set(by_rank)
    size = max(present, default=-1) + 1
    world = set(range(size)) if size <= _MAX_WORLD_PER_DUMP * len(present) else present
    inferred = {
        group: tuple(sorted(world if group[1] == DEFAULT_GROUP else ranks | world - present))
        for group, ranks in recorded.items()
    }
    return inferred | {
        (name, str(config.get("desc", ""))): members_of(config)
        for file in by_rank.values()
        for name, config in group_configs(file.raw).items()
    }
