"""Nodes with checkpoint services in this process, real sockets between them, and ranks without torch."""

import json
import os
from collections.abc import Sequence

from pulsetrain.checkpoint.memory.arena import create_arena
from pulsetrain.checkpoint.service import CheckpointService, CheckpointServiceConfig
from pulsetrain.protocol.messages import WorldNode
from tests.checkpoint.trainers import save


class Cluster:
    """Nodes with a service and `nproc` arenas each, on loopback."""

    def __init__(self, nodes: int, *, nproc: int = 1, poll_s: float = 0.005, **config) -> None:
        self.nproc = nproc
        self.config = CheckpointServiceConfig(token="secret", poll_s=poll_s, **config)
        self.services: dict[str, CheckpointService] = {}
        self.fds: dict[int, int] = {}
        for i in range(nodes):
            self.start(f"n{i}")
        self.names = list(self.services)
        self.set_world(self.names, 0)
        for rank in range(nodes * nproc):
            self.attach(self.names[rank // nproc], rank)

    def start(self, name: str) -> CheckpointService:
        self.services[name] = CheckpointService(self.config, job="j", node=name, address="127.0.0.1")
        return self.services[name]

    def set_world(
        self, names: list[str], attempt: int, key: str = "", holders: Sequence[str] = (), run: str = ""
    ) -> None:
        places = tuple(self.place(name, i) for i, name in enumerate(names))
        outside = tuple(self.place(name, -1) for name in holders)
        for i, name in enumerate(names):
            self.services[name].set_world(places, i, attempt, key, outside, run)

    def place(self, name: str, node_rank: int) -> WorldNode:
        return WorldNode(
            node=name,
            node_rank=node_rank,
            address="127.0.0.1",
            peer_port=self.services[name].peer_port,
            nproc=self.nproc,
        )

    def attach(self, name: str, rank: int) -> int:
        self.fds[rank] = create_arena()
        self.services[name].attach(rank, self.fds[rank])
        return self.fds[rank]

    def save(self, step: int, **options) -> None:
        for rank, fd in self.fds.items():
            assert save(fd, rank, step, world=len(self.fds), **options)

    def holds(self, name: str, rank: int, step: int, tier: str) -> bool:
        return (rank, step, tier) in {(h.rank, h.step, h.tier) for h in self.services[name].held()}

    def events(self, name: str) -> list[tuple[str, dict]]:
        rows = [r for b in self.services[name].take_records(0, "events") for r in b.to_rows()]
        return [(r["kind"], json.loads(r["detail"])) for r in rows]

    def close(self) -> None:
        for service in self.services.values():
            service.close()
        for fd in self.fds.values():
            os.close(fd)
