"""A log of events in which each record carries the hash of the one before it. Pure.

Who changes, removes or inserts a record has to rewrite all records behind it, and then ends with another
hash than the one that somebody has noted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pulsetrain.core.json import JsonObject

START = "0" * 64
"""What stands for the hash before the first record."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """The end of a chain: the number of its last record and that record's hash."""

    seq: int = -1
    hash: str = START


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is wrong with one line of a log, counted from 1."""

    line: int
    what: str


@dataclass(frozen=True, kw_only=True)
class Verified:
    """A log that was read: its records, its end, and what is wrong with it.

    `torn_line` is the number of the last line where that is no record yet, 0 where there is none.
    """

    records: int
    head: Head
    problems: tuple[Problem, ...]
    torn_line: int = 0


def record(event: Mapping[str, object], head: Head) -> tuple[str, Head]:
    """The line of a new record behind `head`, and the head that it is.

    >>> line, head = record({"kind": "evict"}, Head())
    >>> verify([line]).head == head
    True
    """
    seq = head.seq + 1
    digest = _digest(seq, head.hash, event)
    fields = {"seq": seq, "prev": head.hash, "hash": digest, "event": event}
    return _json(fields), Head(seq=seq, hash=digest)


def verify(lines: Iterable[str], noted: str = "", *, ends_open: bool = False) -> Verified:
    """Whether every record is as it was written and follows the one before it.

    `noted` is a hash that somebody kept: a chain that does not hold it was cut off or written anew.
    `ends_open`: the last line has no end. It may be a record that is half written, which is no problem.
    """
    lines = list(lines)
    head, count, problems, seen, torn_line = Head(), 0, [], False, 0
    for number, line in enumerate(lines, start=1):
        fields = _fields(line)
        if fields is None and ends_open and number == len(lines):
            torn_line = number
            continue
        if fields is None:
            problems.append(Problem(line=number, what="is no record"))
            continue
        count += 1
        if fields["prev"] != head.hash or fields["seq"] != head.seq + 1:
            what = "does not follow the record before it: records were removed, inserted or moved"
            problems.append(Problem(line=number, what=what))
        if fields["hash"] != _digest(fields["seq"], str(fields["prev"]), fields["event"]):
            problems.append(Problem(line=number, what="was changed after it was written"))
        head = Head(seq=fields["seq"], hash=str(fields["hash"]))
        seen |= head.hash == noted
    if noted and not seen:
        what = f"no record has the hash {noted}: the end was removed, or the log was written anew"
        problems.append(Problem(line=count, what=what))
    return Verified(records=count, head=head, problems=tuple(problems), torn_line=torn_line)


def _digest(seq: int, previous: str, event: object) -> str:
    return hashlib.sha256(f"{seq}\n{previous}\n{_json(event)}".encode()).hexdigest()


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _fields(line: str) -> JsonObject | None:
    """The fields of a record, None where the line is none."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(fields, dict) and {"seq", "prev", "hash", "event"} <= fields.keys()
    return fields if whole and type(fields["seq"]) is int else None
