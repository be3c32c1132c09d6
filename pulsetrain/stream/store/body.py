"""Bodies of HTTP requests, with a limit."""

from __future__ import annotations

from starlette.requests import Request

from pulsetrain.core.errors import UsageError


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body. Raises `UsageError` where it is larger than `limit` bytes."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise UsageError(f"body is larger than {limit} bytes")
        parts.append(part)
    return b"".join(parts)
