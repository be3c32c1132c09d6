"""What a person saw, as a request has it."""

from __future__ import annotations

from pulsetrain.core.errors import UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.recovery.seen import Seen


def seen_of(body: JsonObject) -> Seen:
    """The optional `seen` of a request's body: attempt, state, rank and since_ns. Raises `UsageError`."""
    given = body.get("seen") or {}
    if not isinstance(given, dict):
        raise UsageError(f"seen = {str(given)[:80]!r}: allowed: an object")
    for name, kind in (("attempt", int), ("state", str), ("rank", int), ("since_ns", int)):
        if given.get(name) is not None and type(given[name]) is not kind:
            raise UsageError(f"seen.{name} = {str(given[name])[:80]!r}: allowed: {_WORDS[kind]}")
    return Seen(**{name: given.get(name) for name in ("attempt", "state", "rank", "since_ns")})


_WORDS = {int: "a whole number", str: "a text"}
