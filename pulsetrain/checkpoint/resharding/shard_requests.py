"""What a node answers to peers that need a part of what its ranks, or ranks whose replicas it has, saved."""

from __future__ import annotations

import socket
from collections.abc import Callable

from pulsetrain.checkpoint.peers.framing import send_bytes, send_frame, telling_that_it_works
from pulsetrain.checkpoint.peers.server import Handler
from pulsetrain.checkpoint.resharding.saved_shards import SavedKey, SavedShards, slices_of
from pulsetrain.checkpoint.resharding.shard_sources import DIGESTS, HEAD, PART, LocalSource
from pulsetrain.core.errors import CorruptData, PulsetrainError
from pulsetrain.core.json import JsonObject

Answer = tuple[JsonObject, bytes]


def handlers(shards: SavedShards) -> dict[str, Handler]:
    """What answers each kind of request."""
    local = LocalSource(shards)

    def head(request: JsonObject) -> Answer:
        found = local.head(_key(request))
        return {"layout_bytes": len(found.layout)}, found.layout + found.values

    def digests(request: JsonObject) -> Answer:
        entries = request.get("entries")
        if not isinstance(entries, list) or not all(isinstance(number, int) for number in entries):
            raise CorruptData(f"not numbers of tensors: {entries!r}")
        return {"digests": local.digests(_key(request), entries)}, b""

    def part(request: JsonObject) -> Answer:
        entry = request.get("entry")
        if not isinstance(entry, int):
            raise CorruptData(f"not the number of a tensor: {entry!r}")
        return {}, local.part(_key(request), entry, slices_of(request.get("inside") or ()))

    return {HEAD: _answering(head), DIGESTS: _answering(digests), PART: _answering(part)}


def _answering(answer: Callable[[JsonObject], Answer]) -> Handler:
    """Send what `answer` gives, or why it gives nothing."""

    def handle(sock: socket.socket, request: JsonObject) -> None:
        try:
            with telling_that_it_works(sock, request):
                header, data = answer(request)
        except PulsetrainError as error:
            send_frame(sock, {"error": str(error)})
            return
        send_frame(sock, {**header, "bytes": len(data)})
        send_bytes(sock, memoryview(data))

    return handle


def _key(request: JsonObject) -> SavedKey:
    values: dict[str, int] = {}
    for name in ("rank", "step", "attempt", "world"):
        value = request.get(name)
        if not isinstance(value, int):
            raise CorruptData(f"peer asked for {name} = {value!r}")
        values[name] = value
    return SavedKey(**values)
