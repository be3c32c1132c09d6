"""What the Kubernetes API refuses, as exceptions with one line."""

from __future__ import annotations

from collections.abc import Mapping

from pulsetrain.core.errors import AuthError, PulsetrainError, Unavailable, UsageError
from pulsetrain.core.json import JsonObject

LONGEST = 300  # characters of a message


class NotFound(UsageError):
    """404: there is no such object."""


class Conflict(Unavailable):
    """409: the object has changed since it was read, or it exists already."""


class Expired(Unavailable):
    """410: the API no longer knows what changed since a version. List anew."""


class Throttled(Unavailable):
    """429: not now. `retry_after_s` is what the API asks for, 0 where it says nothing."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


def error_of(code: int, status: JsonObject, headers: Mapping[str, str], asked: str) -> PulsetrainError:
    """The exception for an answer. `status` is its body, {} where that is none of the API's. Pure.

    >>> error_of(409, {"message": "it has changed"}, {}, "PATCH nodes/n1")
    Conflict('PATCH nodes/n1: it has changed')
    """
    said = " ".join(str(status.get("message") or status.get("reason") or f"status {code}").split())
    line = f"{asked}: {said[:LONGEST]}"
    if code in (401, 403):
        return AuthError(line)
    kinds: Mapping[int, type[PulsetrainError]] = {404: NotFound, 409: Conflict, 410: Expired}
    if code in kinds:
        return kinds[code](line)
    if code == 429:
        return Throttled(line, _seconds(status, headers))
    return UsageError(line) if 400 <= code < 500 else Unavailable(line)


def _seconds(status: JsonObject, headers: Mapping[str, str]) -> float:
    details = status.get("details")
    said = headers.get("retry-after") or (
        details.get("retryAfterSeconds") if isinstance(details, dict) else 0
    )
    try:
        return max(0.0, float(said or 0))
    except (TypeError, ValueError):
        return 0.0
