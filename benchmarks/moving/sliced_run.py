"""Real ranks of one node that share devices: the agent's own zygote, rings and locks, without a hub."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pulsetrain.agent.commands import STORE
from pulsetrain.agent.processes.rank import NodeIdentity, Program
from pulsetrain.agent.processes.ranks import Ranks
from pulsetrain.agent.processes.zygote import Zygote
from pulsetrain.checkpoint.memory.arena import create_arena
from pulsetrain.protocol.messages import Start, WorldNode

READY_S = 120.0
JOB = Path(__file__).with_name("slicing_job.py")


@dataclass(kw_only=True)
class SlicedRun:
    """One run. `out` is where its ranks write."""

    ranks: Ranks
    zygote: Zygote
    out: Path

    def share(self, devices: int, timeout_s: float = 30.0) -> dict[int, int]:
        """Let the ranks take turns on so many devices. Returns once all of them do so."""
        self.look()
        placed, late = self.ranks.share(devices, timeout_s)
        if late:
            raise TimeoutError(f"ranks {late} do not follow")
        return placed

    def squash(self, devices: int, *, on: bool) -> None:
        """Let the ranks of each device compute an optimizer's update once, or each for itself again."""
        memory = self.ranks.devices.squash
        assert memory is not None, "the run was started without"
        self.look()
        placed = self.ranks.devices.share(self.ranks.all, devices)
        if not on:
            memory.group(())
        assert placed

    def stopped(self) -> list[dict[str, Any]]:
        """What ranks say that squash no more."""
        memory = self.ranks.devices.squash
        if memory is None:
            return []
        said = [memory.stopped(rank.local_rank) for rank in self.ranks.all]
        return [json.loads(text) for text in said if text]

    def look(self) -> None:
        """Place ranks by what they have said, as an agent does in each of its turns."""
        self.ranks.look_at_devices(stepped=self.step() >= 0)

    def step(self) -> int:
        """The newest step that every rank has completed."""
        return min(rank.status().last_step for rank in self.ranks.all)

    def wait_for_step(self, step: int, timeout_s: float = 120.0) -> None:
        """Wait until every rank has completed it."""
        deadline = time.monotonic() + timeout_s
        while self.step() < step:
            ended = [(r.rank, r.code, r.err.read_text()[-800:]) for r in self.ranks.all if r.code]
            if ended or time.monotonic() > deadline:
                raise TimeoutError(f"step {self.step()} of {step}; ended: {ended}")
            self.look()
            time.sleep(0.005)
        self.look()

    def stop(self) -> None:
        """Ask all ranks to end after the present step."""
        (self.out / "stop").touch()

    def results(self, timeout_s: float = 120.0) -> list[dict[str, Any]]:
        """What each rank has written at its end."""
        deadline = time.monotonic() + timeout_s
        for rank in self.ranks.all:
            while not rank.ended.wait(0.05) and time.monotonic() < deadline:
                self.look()
            if not rank.ended.is_set() or rank.code:
                raise TimeoutError(f"rank {rank.rank}: {rank.code} {rank.err.read_text()[-800:]}")
        return [json.loads((self.out / f"rank{rank.rank}.json").read_text()) for rank in self.ranks.all]

    def turns(self) -> list[tuple[int, float, int]]:
        """Of each rank: its turns, the seconds that it waited for them, and turns that it gave away."""
        uses = [rank.device.use() for rank in self.ranks.all]
        return [(use.turns, use.waited_ns / 1e9, use.lent) for use in uses]


@contextlib.contextmanager
def sliced(
    out: Path, nproc: int, devices: int, script: Path = JOB, *args: str, squash_every: int = 0
) -> Iterator[SlicedRun]:
    """Run `script` on `nproc` ranks that share `devices`, 0: one each. All ends with the block.

    The ranks of a device squash where `squash_every` is not 0, also where that is not worth it.
    """
    out.mkdir(parents=True, exist_ok=True)
    identity = NodeIdentity(job="sliced", node="here", address="127.0.0.1", nproc_per_node=nproc)
    program = Program(argv=(str(script), *args))
    zygote = Zygote.start(node="here", env={**os.environ, "OMP_NUM_THREADS": "1"})
    arenas = {rank: create_arena() for rank in range(nproc)}
    ranks = Ranks(identity, program, out / "logs", lambda rank: None, squash_every=squash_every)
    if ranks.devices.squash is not None:
        ranks.devices.squash.weighs = False
    try:
        zygote.wait_ready(READY_S)
        _, store = zygote.serve(STORE, {}, 60.0)
        member = WorldNode(node="here", node_rank=0, address="127.0.0.1", peer_port=0, nproc=nproc)
        start = Start(
            id=1,
            job="sliced",
            attempt=0,
            node_rank=0,
            world=(member,),
            store_address="127.0.0.1",
            store_port=int(cast("dict[str, int]", store)["port"]),
            devices=devices,
        )
        ranks.spawn(zygote, start, arenas)
        yield SlicedRun(ranks=ranks, zygote=zygote, out=out)
    finally:
        ranks.stop(zygote, 0.0)
        zygote.close()
        ranks.close()
        ranks.devices.close()
        for fd in arenas.values():
            os.close(fd)
