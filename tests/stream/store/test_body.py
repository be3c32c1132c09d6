"""A body is read whole, and one that is too large is not read to its end."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import Request

from pulsetrain.core.errors import UsageError
from pulsetrain.stream.store.body import read_body


def read(parts, limit):
    """What is read of a request that arrives in `parts`, and how many of them were taken."""
    left = list(parts)

    async def receive():
        part = left.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(left)}

    request = Request({"type": "http", "method": "POST", "headers": []}, receive)
    try:
        return asyncio.run(read_body(request, limit)), len(parts) - len(left)
    except UsageError as error:
        return str(error), len(parts) - len(left)


@pytest.mark.parametrize("parts", [[b""], [b"abcd"], [b"ab", b"", b"cd"]])
def test_a_body_up_to_the_limit_is_read_whole(parts):
    assert read(parts, 4) == (b"".join(parts), len(parts))


def test_a_larger_one_is_refused_as_soon_as_it_is_too_large():
    assert read([b"abc", b"de", b"f" * 1000], 4) == ("body is larger than 4 bytes", 2)
