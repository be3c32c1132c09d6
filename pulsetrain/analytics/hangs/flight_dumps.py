"""PyTorch Flight Recorder dumps from files: one a rank, pickle or JSON, nothing in them executed.

Format: torch/csrc/distributed/c10d/FlightRecorder.hpp (version 2.x). Groups are matched across ranks by
description and members, since names may differ; ranks are global.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from pulsetrain.analytics.hangs.evidence import Key
from pulsetrain.core.errors import CorruptData, UsageError

_STATE = ("state", "time_discovered_started_ns", "time_discovered_completed_ns")
DEFAULT = "default_pg"  # the description of the group of all ranks
MOST_BYTES = 256 << 20  # a dump of 20,000 entries with stacks takes about 40 MiB
_UNSOUND = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)
_LONGEST_RANK = 9  # digits; longer numbers in file names are times
_MOST_ABSENT = 4  # ranks a dump; more are numbers in file names that are no ranks
_P2P = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)")


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One entry of a dump. `peer` is a global rank, -1 for a collective; `pending`: it had not completed."""

    group: Key
    seq: int
    p2p_seq: int
    op: str
    size: str
    peer: int
    order: int
    created_ns: int
    pending: bool
    started: bool
    transfers: int = 0
    """sends and recvs in the group so far, told even where they have no entries of their own"""


@dataclass(frozen=True, kw_only=True)
class Dump:
    """One rank's dump. `status` is (last enqueued, last completed) where the recorder tells it.

    `inferred` are groups that `pg_config` lacks: their members are those seen in them. In the groups of
    `unseen` the recorder counts transfers without recording them, as gloo's does.
    """

    rank: int
    groups: tuple[Key, ...]
    operations: tuple[Operation, ...]
    status: Mapping[Key, tuple[int, int]] = field(default_factory=dict)
    inferred: frozenset[Key] = frozenset()
    unseen: frozenset[Key] = frozenset()


@dataclass(frozen=True)
class _File:
    """A dump as it was read, and what it says by itself: of a rank, if only that were known."""

    name: str
    raw: Mapping[str, Any]
    dump: Dump


class _Plain(pickle.Unpickler):
    """Reads only what needs no code: numbers, text, lists and dicts."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"names {module}.{name}, which no dump needs")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError(f"refers to something outside the file ({pid!r})")


def load(folder: Path) -> tuple[list[Dump], list[str]]:
    """Every readable dump in `folder`, sorted by rank, and a note for each file that was not used."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: not a folder of Flight Recorder dumps")
    files: list[_File] = []
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
    ranks = _ranks([(file.name, file.raw) for file in files], notes)
    known = [(rank, file) for rank, file in zip(ranks, files, strict=True) if rank is not None]
    if any(file.dump.inferred for _, file in known):
        keys = _members_by_name([(rank, file.raw) for rank, file in known])
        dumps = {rank: _dump(rank, file.raw, keys) for rank, file in known}
    else:
        dumps = {
            rank: file.dump if file.dump.rank == rank else _dump(rank, file.raw, {}) for rank, file in known
        }
    return [dumps[rank] for rank in sorted(dumps)], notes


def _read_file(path: Path) -> _File:
    """The dump in a file, checked as far as one dump alone can be. Raises `CorruptData` and `OSError`."""
    if (size := path.stat().st_size) > MOST_BYTES:
        raise CorruptData(f"not a Flight Recorder dump: {size:,} bytes, allowed: {MOST_BYTES:,}")
    raw = read(path.read_bytes())
    try:
        return _File(path.name, raw, _dump(_rank(path.name, raw) or 0, raw, {}))
    except _UNSOUND as error:
        raise CorruptData(f"a Flight Recorder dump with unsound values: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


def _of_one_world(files: Sequence[_File], notes: list[str]) -> list[_File]:
    """The dumps whose default group has the members that most have; a note for each of another job."""
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


def _world(raw: Mapping[str, Any]) -> tuple[int, ...]:
    """Members of the default group; empty where it is not told."""
    named = (c for c in _configs(raw).values() if c.get("desc") == DEFAULT)
    return next((tuple(sorted(_members(c))) for c in named), ())


def read(data: bytes) -> Mapping[str, Any]:
    """The dump in `data`, JSON or pickle. Raises `CorruptData` for anything else."""
    try:
        raw = json.loads(data) if data.lstrip()[:1] == b"{" else _Plain(io.BytesIO(data)).load()
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
    return raw


def _ranks(raws: Sequence[tuple[str, Mapping[str, Any]]], notes: list[str]) -> list[int | None]:
    """The rank of each dump: what it says itself, else the one rank in all its groups, else its file name."""
    found: list[int | None] = []
    taken: set[int] = set()
    for name, raw in raws:
        rank = _rank(name, raw)
        if rank is None or rank in taken:
            notes.append(
                f"{name}: " + ("its rank is not known" if rank is None else f"a second dump of rank {rank}")
            )
            rank = None
        else:
            taken.add(rank)
        found.append(rank)
    return found


def _rank(name: str, raw: Mapping[str, Any]) -> int | None:
    if isinstance(raw.get("rank"), int):
        return int(raw["rank"])
    common = _common_members(raw)
    if len(common) == 1:
        return next(iter(common))
    fitting = [n for n in _numbers(name) if not common or n in common]
    return fitting[0] if fitting else None


def _numbers(name: str) -> list[int]:
    """The numbers in a file's name, the likeliest rank first: after "rank", at the end (as the recorder names
    its files), then from right to left before the first dot."""
    named = re.findall(r"rank[_\-.]?(\d+)", name, re.IGNORECASE)[:1]
    named += re.findall(r"(\d+)$", re.sub(r"(\.[a-z]\w{0,6})+$", "", name, flags=re.IGNORECASE))
    named += reversed(re.findall(r"\d+", name.split(".", 1)[0]))
    return [int(n) for n in named if len(n) < _LONGEST_RANK]


def _common_members(raw: Mapping[str, Any]) -> set[int]:
    """Ranks that are members of all groups of the dump."""
    sets = [set(members) for c in _configs(raw).values() if (members := _members(c))]
    return set.intersection(*sets) if sets else set()


def _configs(raw: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """pg_config as name -> {desc, ranks}, without groups that have no name: gloo writes all its groups, and
    only the places in them, under one empty name."""
    config = raw.get("pg_config")
    if not isinstance(config, dict):
        return {}
    return {str(k): v for k, v in config.items() if isinstance(v, dict) and (k or v.get("desc"))}


def _members(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Global ranks of a group in the group's own order; JSON text in dumps, a list in some versions."""
    ranks = config.get("ranks", ())
    if isinstance(ranks, str):
        ranks = [int(n) for n in re.findall(r"\d+", ranks)]
    return tuple(int(r) for r in ranks)


def _by_number(name: str) -> tuple[int, int, str]:
    return (0, int(name), "") if name.isdecimal() else (1, 0, name)


def _keys(raw: Mapping[str, Any]) -> dict[str, Key]:
    """Name of each group in this dump -> its key; groups alike in description and members are numbered."""
    seen: Counter[tuple[str, tuple[int, ...]]] = Counter()
    keys: dict[str, Key] = {}
    for name in sorted(configs := _configs(raw), key=_by_number):
        alike = (str(configs[name].get("desc") or name), tuple(sorted(_members(configs[name]))))
        number = seen[alike]
        seen[alike] += 1
        keys[name] = (alike[0] if number == 0 else f"{alike[0]}#{number + 1}", alike[1])
    return keys


def _members_by_name(raws: Sequence[tuple[int, Mapping[str, Any]]]) -> dict[tuple[str, str], tuple[int, ...]]:
    """(name, description) -> members, for entries of dumps whose own pg_config lacks the group: from the
    pg_config of others, else whoever recorded something in it and the ranks that left no dump; all ranks for
    the default group."""
    seen: dict[tuple[str, str], set[int]] = {}
    for rank, raw in raws:
        for group in {_group(entry) for entry in raw.get("entries") or ()}:
            seen.setdefault(group, set()).add(rank)
    heard = {rank for rank, _ in raws}
    size = max(heard, default=-1) + 1
    world = set(range(size)) if size <= _MOST_ABSENT * len(heard) else heard
    inferred = {
        group: tuple(sorted(world if group[1] == DEFAULT else ranks | world - heard))
        for group, ranks in seen.items()
    }
    return inferred | {
        (name, str(config.get("desc", ""))): _members(config)
        for _, raw in raws
        for name, config in _configs(raw).items()
    }


def _group(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Name and description of an entry's group."""
    name, desc = (*map(str, entry.get("process_group") or ("", "")), "")[:2]
    return name, desc


def _dump(rank: int, raw: Mapping[str, Any], known: Mapping[tuple[str, str], tuple[int, ...]]) -> Dump:
    keys = _keys(raw)
    orders = {name: _members(config) for name, config in _configs(raw).items()}
    inferred: set[Key] = set()
    operations = []
    for place, entry in enumerate(_settled(raw.get("entries") or ())):
        name, desc = _group(entry)
        if name not in keys:
            orders[name] = known.get((name, desc), (rank,))
            keys[name] = (desc or name, tuple(sorted(orders[name])))
            inferred.add(keys[name])
        if keys[name] not in inferred or _within(entry, orders[name]):
            operations.append(_operation(entry, place, rank, keys[name], orders[name]))
    return Dump(
        rank=rank,
        groups=tuple(keys.values()),
        operations=tuple(operations),
        status=_status(raw, keys),
        inferred=frozenset(inferred),
        unseen=frozenset(_unseen(raw, keys)),
    )


def _within(entry: Mapping[str, Any], order: Sequence[int]) -> bool:
    """Whether both sides of a transfer are known; true of a collective."""
    transfer = _P2P.search(str(entry.get("profiling_name", "")))
    return transfer is None or max(int(transfer[2]), int(transfer[3])) < len(order)


def _unseen(raw: Mapping[str, Any], keys: Mapping[str, Key]) -> Iterator[Key]:
    """Groups in which gloo counted more operations than collectives."""
    for entry in raw.get("entries") or ():
        counted = int(entry.get("op_id") or 0) > int(entry.get("collective_seq_id") or 0)
        if counted and str(entry.get("profiling_name", "")).startswith("gloo:"):
            yield keys[_group(entry)[0]]


def _settled(entries: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Entries without the wrappers of coalesced transfers; their parts take the wrapper's state, for a part's
    own state is never updated."""
    wrappers = {
        _batch(e): e for e in entries if "coalesced" in str(e.get("profiling_name", "")) and e.get("is_p2p")
    }
    if not wrappers:
        return entries
    settled: list[Mapping[str, Any]] = []
    for entry in entries:
        wrapper = wrappers.get(_batch(entry)) if entry.get("is_p2p") else None
        if wrapper is entry:
            continue
        state = {k: wrapper.get(k) for k in _STATE} if wrapper else {}
        settled.append({**entry, **state})
    return settled


def _batch(entry: Mapping[str, Any]) -> tuple[str, Any, Any]:
    return str(entry.get("process_group")), entry.get("collective_seq_id"), entry.get("p2p_seq_id")


def _operation(entry: Mapping[str, Any], place: int, rank: int, key: Key, order: Sequence[int]) -> Operation:
    name = str(entry.get("profiling_name", "")).rsplit(":", 1)[-1]
    transfer = _P2P.search(name) if entry.get("is_p2p", True) else None
    state = str(entry.get("state", ""))
    return Operation(
        group=key,
        seq=int(entry.get("collective_seq_id", entry.get("seq_id", -1))),
        p2p_seq=int(entry.get("p2p_seq_id", -1)),
        op=transfer[1] if transfer else name,
        size=_size(entry, name),
        peer=_peer(transfer, rank, order) if transfer else -1,
        order=int(entry.get("record_id", place)),
        created_ns=int(entry.get("time_created_ns") or 0),
        pending=state != "completed"
        and not entry.get("time_discovered_completed_ns")
        and entry.get("retired") is not True,
        started=state == "started" or bool(entry.get("time_discovered_started_ns")),
        transfers=int(entry.get("p2p_seq_id") or 0),
    )


def _peer(transfer: re.Match[str], rank: int, order: Sequence[int]) -> int:
    """The other side of `send a->b` or `recv a<-b`; both numbers are places in the group's own order, or
    ranks where the group is not known. Raises `IndexError` for a place beyond the group."""
    if len(order) > 1 and max(int(transfer[2]), int(transfer[3])) >= len(order):
        raise IndexError(f"{transfer[0]} in a group of {len(order)}")
    sides = [order[n] if n < len(order) else n for n in (int(transfer[2]), int(transfer[3]))]
    return sides[1] if sides[0] == rank else sides[0]


def _size(entry: Mapping[str, Any], name: str) -> str:
    """Payload and type as text; one side only where the other depends on the rank's place."""
    side = "output" if name in ("broadcast", "_broadcast_oop") else "input"
    return f"{entry.get(f'{side}_sizes', '')} {entry.get('input_dtypes', '')}"


def _status(raw: Mapping[str, Any], keys: Mapping[str, Key]) -> dict[Key, tuple[int, int]]:
    """(last enqueued, last completed) of each group. `pg_status` has keys of its own, which entries tie to a
    name; where it lists as many groups as `pg_config` the two also correspond in order."""
    status = {int(k): v for k, v in (raw.get("pg_status") or {}).items()}
    names = {int(e["pg_id"]): str(e["process_group"][0]) for e in raw.get("entries") or () if "pg_id" in e}
    configured = sorted(_configs(raw), key=_by_number)
    if len(configured) == len(status):
        paired = dict(zip(sorted(status), configured, strict=True))
        if all(paired.get(i) == name for i, name in names.items()):
            names = paired
    return {
        keys[name]: (
            int(status[i].get("last_enqueued_collective", -1)),
            int(status[i].get("last_completed_collective", -1)),
        )
        for i, name in names.items()
        if i in status and name in keys
    }
