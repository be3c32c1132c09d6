"""Addresses that people give, in parts."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from pulsetrain.core.errors import UsageError


def split_url(url: str, what: str, *, one_host: bool = True) -> SplitResult:
    """The parts of `url`, whose `port` can be read where it has `one_host`.

    Raises `UsageError`, which begins with `what` and never shows user and password.

    >>> split_url("http://head:8780/db", "store").port
    8780
    """
    try:
        parts = urlsplit(url)
        if one_host:
            parts.port  # noqa: B018 - it is parsed when it is read
    except ValueError as error:
        raise UsageError(f"{what} {_shown(url)!r}: its host or port is not valid") from error
    return parts


def _shown(url: str) -> str:
    scheme, slashes, rest = url.partition("//")
    return scheme + slashes + rest.rpartition("@")[2]
