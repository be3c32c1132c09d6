"""What an agent does when the hub wants its ranks dumped as they stand, or restored."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from pulsetrain.agent.processes.process_images import Manifest, ProcessImages, let_go
from pulsetrain.core.errors import Unavailable, UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.protocol.messages import DumpRanks, Start

STORE = "store"
GONE_S = 2.0
LOOK_S = 0.02
LONG_NS = 10**18
"""Ranks of an image stand until they are told to run on. Their agent's end ends them, too."""
STOPPED_S = 30.0
"""Ranks that were dumped stand for so long at most if nobody ends them."""


class StandingRank(Protocol):
    """A rank as this module sees it."""

    rank: int
    pid: int
    dumped: bool
    out: Path
    err: Path

    @property
    def stands(self) -> bool: ...
    @property
    def standing_number(self) -> tuple[int, int]: ...
    def hold(self, number: int, past: int, until_ns: int, saved_step: int = -1) -> None: ...


class DumpedRanks(Protocol):
    """The ranks of a node as this module sees them."""

    @property
    def alive(self) -> Sequence[StandingRank]: ...
    @property
    def attempt(self) -> int: ...


def dump(
    command: DumpRanks,
    ranks: DumpedRanks,
    images: ProcessImages,
    store: int | None,
    *,
    devices: int = 0,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> JsonObject:
    """Dump all ranks and the store at which they met. They are left stopped where that worked.

    Raises `UsageError` or `Unavailable` where they cannot be dumped. Then they stand on. So they do where
    that takes longer than the hub waits, or somebody asks for another hold meanwhile.
    """
    standing = ranks.alive
    if command.attempt != ranks.attempt:
        raise UsageError(f"attempt {command.attempt} does not run here; attempt {ranks.attempt} does")
    if devices:
        raise UsageError("ranks that take turns on devices cannot be dumped")
    if store is None:
        raise UsageError("the store at which the ranks met is not on this node, so it cannot be dumped")
    restless = [rank.rank for rank in standing if not rank.stands]
    if restless or not standing:
        raise UsageError(f"rank {restless[0]} does not stand" if restless else "no rank runs here")
    began_ns = clock_ns()
    for rank in standing:
        rank.hold(*rank.standing_number, began_ns + LONG_NS)
        rank.dumped = True
    processes = {f"rank_{rank.rank}": rank.pid for rank in standing} | {STORE: store}
    outputs = {f"rank_{rank.rank}": (str(rank.out), str(rank.err)) for rank in standing}
    asked, limit_ns = holds(standing), int(command.limit_s * 1e9)

    def why_end() -> str:
        if holds(standing) != asked:
            return "another hub wants the ranks to run, or to stand for something else"
        late = 0 < limit_ns < clock_ns() - began_ns
        return f"it takes longer than {command.limit_s:g} s" if late else ""

    try:
        manifest = images.dump(command.name, command.attempt, processes, outputs, why_end=why_end)
    except Unavailable:
        for rank in standing:
            rank.dumped = False
        raise
    finally:
        until_ns = clock_ns() + int(STOPPED_S * 1e9)
        for rank in standing:
            rank.hold(*rank.standing_number, until_ns)
    return {
        "bytes": manifest.bytes,
        "stored_bytes": manifest.stored_bytes,
        "new_bytes": manifest.new_bytes,
        "dump_ns": clock_ns() - began_ns,
        "processes": len(processes),
    }


def holds(ranks: Sequence[StandingRank]) -> set[int]:
    """The numbers of the holds that were asked for last."""
    return {rank.standing_number[0] for rank in ranks}


def go_on(ranks: Sequence[StandingRank], store: int | None) -> None:
    """Let ranks that were dumped, and their store, run on."""
    for rank in ranks:
        rank.dumped = False
    let_go([*(rank.pid for rank in ranks), *([] if store is None else [store])])


def read(start: Start, images: ProcessImages, store: int | None) -> Manifest:
    """The manifest of the image that `start` names. The store that still runs must be gone before.

    Raises `Unavailable` where it cannot be restored.
    """
    deadline_s = time.monotonic() + GONE_S
    while store is not None and Path(f"/proc/{store}").exists() and time.monotonic() < deadline_s:
        time.sleep(LOOK_S)
    return images.read(start.image)


def store_of(job: str, manifest: Manifest) -> dict[str, int]:
    """The job's store by its name, as the agent keeps it."""
    return {job: manifest.processes[STORE]}
