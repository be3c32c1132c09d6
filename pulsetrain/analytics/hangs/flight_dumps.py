"""What one PyTorch Flight Recorder dump says: its groups, operations and counters.

Format: torch/csrc/distributed/c10d/FlightRecorder.hpp (version 2.x). Groups are matched across ranks by
description and members, because their names may differ. Ranks are global.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from pulsetrain.analytics.hangs.evidence import GroupKey

DEFAULT_GROUP = "default_pg"  # the description of the group of all ranks
_TRANSFER = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)")


class RawState(TypedDict, total=False):
    """How far an operation came, as the recorder writes it."""

    state: str | None
    retired: bool
    time_created_ns: int
    time_discovered_started_ns: int | None
    time_discovered_completed_ns: int | None


class RawEntry(RawState, total=False):
    """One entry of a dump as the recorder writes it. Nothing in it is checked."""

    record_id: int
    pg_id: int
    process_group: Sequence[str]
    collective_seq_id: int
    p2p_seq_id: int
    seq_id: int
    op_id: int
    profiling_name: str
    is_p2p: bool
    input_sizes: object
    output_sizes: object
    input_dtypes: object


class RawGroup(TypedDict, total=False):
    """One process group in `pg_config`. `ranks` is JSON text in most versions, a list in some."""

    name: str
    desc: str
    ranks: str | Sequence[int]


class RawStatus(TypedDict, total=False):
    """The counters of one process group in `pg_status`."""

    last_enqueued_collective: int
    last_completed_collective: int


class RawDump(TypedDict, total=False):
    """A dump as the recorder writes it. Nothing in it is checked."""

    rank: int
    pg_config: Mapping[str, RawGroup]
    pg_status: Mapping[str, RawStatus]
    entries: Sequence[RawEntry]


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One entry of a dump.

    `peer` is a global rank, -1 for a collective. `pending`: the operation had not completed. `transfers`
    counts sends and recvs in the group so far, also where they have no entries of their own.
    """

    group: GroupKey
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


@dataclass(frozen=True, kw_only=True)
class Dump:
    """One rank's dump.

    `status` is (last enqueued, last completed) for the groups that have counters. The groups of `inferred`
    are not in `pg_config`, so their members are the ranks seen in them. In the groups of
    `uncounted_transfers` the recorder counts transfers without recording them, as gloo's recorder does.
    """

    rank: int
    groups: tuple[GroupKey, ...]
    operations: tuple[Operation, ...]
    status: Mapping[GroupKey, tuple[int, int]] = field(default_factory=dict)
    inferred: frozenset[GroupKey] = frozenset()
    uncounted_transfers: frozenset[GroupKey] = frozenset()


def parse(rank: int, raw: RawDump, members: Mapping[tuple[str, str], tuple[int, ...]]) -> Dump:
    """Return the dump of `rank`.

    `members` maps name and description of a group to its ranks, for groups that `pg_config` lacks. Raises
    `AttributeError`, `IndexError`, `KeyError`, `OverflowError`, `TypeError` or `ValueError` for values that
    no recorder writes.
    """
    keys = group_keys(raw)
    orders = {name: members_of(config) for name, config in group_configs(raw).items()}
    inferred: set[GroupKey] = set()
    operations = []
    for position, entry in enumerate(_without_wrappers(raw.get("entries") or ())):
        name, desc = group_of(entry)
        if name not in keys:
            orders[name] = members.get((name, desc), (rank,))
            keys[name] = (desc or name, tuple(sorted(orders[name])))
            inferred.add(keys[name])
        if keys[name] not in inferred or _sides_known(entry, orders[name]):
            operations.append(_operation(entry, position, rank, keys[name], orders[name]))
    return Dump(
        rank=rank,
        groups=tuple(keys.values()),
        operations=tuple(operations),
        status=_status(raw, keys),
        inferred=frozenset(inferred),
        uncounted_transfers=frozenset(_uncounted_transfers(raw, keys)),
    )


# -- groups --------------------------------------------------------------------------------------------


def group_configs(raw: RawDump) -> Mapping[str, RawGroup]:
    """Return `pg_config` without groups that have no name.

    Gloo writes all its groups under one empty name, with positions instead of ranks. Those are of no use.
    """
    config = raw.get("pg_config")
    if not isinstance(config, dict):
        return {}
    return {str(name): group for name, group in config.items() if _is_named(name, group)}


def _is_named(name: str, group: object) -> bool:
    return isinstance(group, dict) and bool(name or group.get("desc"))


def members_of(config: RawGroup) -> tuple[int, ...]:
    """Return the global ranks of a group in the group's own order."""
    ranks = config.get("ranks", ())
    if isinstance(ranks, str):
        return tuple(int(n) for n in re.findall(r"\d+", ranks))
    return tuple(int(r) for r in ranks)


def group_keys(raw: RawDump) -> dict[str, GroupKey]:
    """Return the key of each group by its name. Groups with equal description and members are numbered."""
    seen: Counter[GroupKey] = Counter()
    keys: dict[str, GroupKey] = {}
    for name in sorted(configs := group_configs(raw), key=_numeric_order):
        desc = str(configs[name].get("desc") or name)
        key = (desc, tuple(sorted(members_of(configs[name]))))
        number = seen[key]
        seen[key] += 1
        keys[name] = (desc if number == 0 else f"{desc}#{number + 1}", key[1])
    return keys


def group_of(entry: RawEntry) -> tuple[str, str]:
    """Return name and description of an entry's group."""
    name, desc = (*map(str, entry.get("process_group") or ("", "")), "")[:2]
    return name, desc


def _numeric_order(name: str) -> tuple[int, int, str]:
    return (0, int(name), "") if name.isdecimal() else (1, 0, name)


def _status(raw: RawDump, keys: Mapping[str, GroupKey]) -> dict[GroupKey, tuple[int, int]]:
    """Return (last enqueued, last completed) of each group.

    `pg_status` has ids of its own, and entries tie them to a name. Where it lists as many groups as
    `pg_config`, the two also correspond in order.
    """
    status = {int(k): v for k, v in (raw.get("pg_status") or {}).items()}
    names = {int(e["pg_id"]): str(e["process_group"][0]) for e in raw.get("entries") or () if "pg_id" in e}
    configured = sorted(group_configs(raw), key=_numeric_order)
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


# -- entries -------------------------------------------------------------------------------------------


def _operation(entry: RawEntry, position: int, rank: int, key: GroupKey, order: Sequence[int]) -> Operation:
    name = str(entry.get("profiling_name", "")).rsplit(":", 1)[-1]
    transfer = _TRANSFER.search(name) if entry.get("is_p2p", True) else None
    state = str(entry.get("state", ""))
    return Operation(
        group=key,
        seq=int(entry.get("collective_seq_id", entry.get("seq_id", -1))),
        p2p_seq=int(entry.get("p2p_seq_id", -1)),
        op=transfer[1] if transfer else name,
        size=_size(entry, name),
        peer=_peer(transfer, rank, order) if transfer else -1,
        order=int(entry.get("record_id", position)),
        created_ns=int(entry.get("time_created_ns") or 0),
        pending=state != "completed"
        and not entry.get("time_discovered_completed_ns")
        and entry.get("retired") is not True,
        started=state == "started" or bool(entry.get("time_discovered_started_ns")),
        transfers=int(entry.get("p2p_seq_id") or 0),
    )


def _peer(transfer: re.Match[str], rank: int, order: Sequence[int]) -> int:
    """Return the other side of `send a->b` or `recv a<-b`.

    Both numbers are positions in the group's own order, or ranks where the group is not known. Raises
    `IndexError` for a position beyond the group.
    """
    if len(order) > 1 and max(int(transfer[2]), int(transfer[3])) >= len(order):
        raise IndexError(f"{transfer[0]} in a group of {len(order)}")
    sides = [order[n] if n < len(order) else n for n in (int(transfer[2]), int(transfer[3]))]
    return sides[1] if sides[0] == rank else sides[0]


def _size(entry: RawEntry, name: str) -> str:
    """Return payload and type as text, of the side that does not depend on the rank's position."""
    broadcast = name in ("broadcast", "_broadcast_oop")
    sizes = entry.get("output_sizes", "") if broadcast else entry.get("input_sizes", "")
    return f"{sizes} {entry.get('input_dtypes', '')}"


def _sides_known(entry: RawEntry, order: Sequence[int]) -> bool:
    """Whether both sides of a transfer are in the group. True for a collective."""
    transfer = _TRANSFER.search(str(entry.get("profiling_name", "")))
    return transfer is None or max(int(transfer[2]), int(transfer[3])) < len(order)


def _uncounted_transfers(raw: RawDump, keys: Mapping[str, GroupKey]) -> Iterator[GroupKey]:
    """Yield the groups in which gloo counted more operations than collectives."""
    for entry in raw.get("entries") or ():
        more = int(entry.get("op_id") or 0) > int(entry.get("collective_seq_id") or 0)
        if more and str(entry.get("profiling_name", "")).startswith("gloo:"):
            yield keys[group_of(entry)[0]]


def _without_wrappers(entries: Sequence[RawEntry]) -> Sequence[RawEntry]:
    """Return the entries without the wrappers of coalesced transfers.

    The parts of a wrapper take its state, because the recorder never updates a part's own state.
    """
    wrappers = {
        _batch(e): e for e in entries if "coalesced" in str(e.get("profiling_name", "")) and e.get("is_p2p")
    }
    if not wrappers:
        return entries
    kept: list[RawEntry] = []
    for entry in entries:
        wrapper = wrappers.get(_batch(entry)) if entry.get("is_p2p") else None
        if wrapper is None:
            kept.append(entry)
        elif wrapper is not entry:
            kept.append(
                {
                    **entry,
                    "state": wrapper.get("state"),
                    "time_discovered_started_ns": wrapper.get("time_discovered_started_ns"),
                    "time_discovered_completed_ns": wrapper.get("time_discovered_completed_ns"),
                }
            )
    return kept


def _batch(entry: RawEntry) -> tuple[str, object, object]:
    return str(entry.get("process_group")), entry.get("collective_seq_id"), entry.get("p2p_seq_id")
