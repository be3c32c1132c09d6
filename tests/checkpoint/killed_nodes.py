"""Nodes and ranks as real processes that are killed at seeded moments, and a controller that brings the job
back.

    python -m tests.checkpoint.killed_nodes FOLDER ROUNDS SEED

Each node is a process with a checkpoint service. Each rank is its child and saves states of known content, no
rank more than a step ahead of another. The controller kills a rank, a node, two nodes that do not hold each
other, or a node and the one that holds its replica; asks the survivors what they hold; restores the newest
common step; and compares every rank's bytes with what that step must be. Prints one JSON line a round.
"""

import ctypes
import hashlib
import json
import mmap
import os
import random
import signal
import socket
import sys
import time
from pathlib import Path

from pulsetrain.checkpoint.memory.arena import create_arena
from pulsetrain.checkpoint.service import CheckpointService, CheckpointServiceConfig
from pulsetrain.core.errors import PulsetrainError
from pulsetrain.protocol.messages import Held, WorldNode
from pulsetrain.recovery.world import plan_restore
from tests.checkpoint.trainers import arrays, content, save

NODES, STEP_S, PERSIST_EVERY = 4, 0.02, 5


def config(folder: Path) -> CheckpointServiceConfig:
    return CheckpointServiceConfig(
        token="t",
        placement="ring",
        poll_s=0.003,
        storage=str(folder / "store"),
        persist_every=PERSIST_EVERY,
        commit_timeout_s=2.0,
        peer_timeout_s=1.0,
    )


def state(rank: int, step: int) -> dict:
    """Two thirds of it are the same on all ranks, and are not sent."""
    return arrays(rank, step, count=1)


def end_with_parent() -> None:
    """No process outlives the controller, whatever ends it."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def train(fd: int, rank: int, step: int, attempt: int, progress: memoryview) -> None:
    """Save a step after the other, in step with the others, until killed."""
    while True:
        step += 1
        while min(progress[:NODES]) < step - 1:
            time.sleep(0.001)
        time.sleep(STEP_S)
        save(fd, rank, step, world=NODES, attempt=attempt, tensors=state(rank, step))
        progress[rank] = step


class NodeProcess:
    """Inside the node: one service, one rank."""

    def __init__(self, name: str, folder: Path, sock: socket.socket, progress: memoryview) -> None:
        self.service = CheckpointService(config(folder), job="j", node=name, address="127.0.0.1")
        self.lines, self.sock, self.progress = sock.makefile("r"), sock, progress
        self.fd, self.rank, self.child = -1, -1, 0
        self.say({"port": self.service.peer_port})

    def say(self, value) -> None:
        self.sock.sendall(json.dumps(value).encode() + b"\n")

    def serve(self) -> None:
        for line in self.lines:
            request = json.loads(line)
            try:
                self.say(getattr(self, request.pop("do"))(**request))
            except PulsetrainError as error:
                self.say({"error": str(error)})

    def prepare(self, world: list, rank: int, attempt: int, step: int, source: str):
        if self.rank != rank:
            self.fd, self.rank = create_arena(), rank
            self.service.attach(rank, self.fd)
        self.service.set_world(tuple(WorldNode(**p) for p in world), rank, attempt)
        if step < 0:
            self.service.clear()
            return {}
        took = self.service.load(rank, step, source)
        data = content(self.fd, rank, step)
        return {"ms": took / 1e6, "sha": hashlib.sha256(data).hexdigest() if data else "torn"}

    def run(self, step: int, attempt: int):
        self.child = os.fork()
        if self.child == 0:
            end_with_parent()
            train(self.fd, self.rank, step, attempt, self.progress)
        return {"pid": self.child}

    def stop(self):
        if self.child:
            os.kill(self.child, signal.SIGKILL)
            os.waitpid(self.child, 0)
            self.child = 0
        return {}

    def shared(self):
        """Ranks of which a peer had most itself, since the last call."""
        rows = [r for b in self.service.take_records(0, "events") for r in b.to_rows()]
        return sum(row["kind"] == "replica_shared" for row in rows)

    def held(self):
        return [[h.rank, h.step, h.tier] for h in self.service.held()]


class Node:
    """The controller's handle on a node."""

    def __init__(self, name: str, folder: Path, progress: memoryview) -> None:
        self.name = name
        self.sock, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            end_with_parent()
            try:
                NodeProcess(name, folder, theirs, progress).serve()
            finally:
                os._exit(0)
        theirs.close()
        self.lines = self.sock.makefile("r")
        self.port = json.loads(self.lines.readline())["port"]

    def ask(self, do: str, **fields):
        self.sock.sendall(json.dumps({"do": do, **fields}).encode() + b"\n")
        return json.loads(self.lines.readline())

    def kill(self) -> None:
        """The node with all its ranks, as when power is lost."""
        os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.sock.close()


def truth(folder: Path) -> dict[tuple[int, int], str]:
    """What each rank's bytes must be at each step."""
    fd = create_arena()
    found = {}
    for rank in range(NODES):
        for step in range(1, 400):
            save(fd, rank, step, world=NODES, tensors=state(rank, step))
            found[rank, step] = hashlib.sha256(content(fd, rank, step)).hexdigest()
    os.close(fd)
    return found


def victims(kind: str, draw: random.Random) -> list[int]:
    first = draw.randrange(NODES)
    others = {"node": [], "apart": [(first + 2) % NODES], "holder": [(first - 1) % NODES]}[kind]
    return [first, *others]


def main(folder: Path, rounds: int, seed: int) -> None:
    draw = random.Random(seed)
    progress = memoryview(mmap.mmap(-1, 4096)).cast("q")
    expected = truth(folder)
    made = 0

    def fresh() -> Node:
        nonlocal made
        made += 1
        return Node(f"n{made}", folder, progress)

    nodes = [fresh() for _ in range(NODES)]
    step, sources = -1, {}
    for number in range(rounds):
        world = [
            {"node": n.name, "node_rank": i, "address": "127.0.0.1", "peer_port": n.port, "nproc": 1}
            for i, n in enumerate(nodes)
        ]
        loads = []
        for rank, node in enumerate(nodes):
            source = sources.get(rank, "memory")
            answer = node.ask("prepare", world=world, rank=rank, attempt=number, step=step, source=source)
            if step >= 0:
                assert answer.get("sha") == expected[rank, step], (number, rank, step, source, answer)
                loads.append(answer["ms"])
            progress[rank] = max(step, 0)
        for node in nodes:
            node.ask("run", step=max(step, 0), attempt=number)
        goal = max(step, 0) + draw.randint(4, 12)
        while min(progress[:NODES]) < goal:
            time.sleep(0.001)
        time.sleep(draw.random() * STEP_S)
        kind = draw.choice(["rank", "node", "node", "apart", "holder"])
        if kind == "rank":
            nodes[draw.randrange(NODES)].ask("stop")
        else:
            for victim in victims(kind, draw):
                nodes[victim].kill()
                nodes[victim] = fresh()
        reached = max(progress[:NODES])
        for node in nodes:
            node.ask("stop")
        shared = sum(n.ask("shared") for n in nodes)
        held = {
            n.name: [Held(rank=rank, step=step, tier=tier) for rank, step, tier in n.ask("held")]
            for n in nodes
        }
        after = [WorldNode(**{**place, "node": n.name}) for place, n in zip(world, nodes, strict=True)]
        plan = plan_restore(after, held)
        restored, sources = plan.step, plan.sources
        print(
            json.dumps(
                {
                    "round": number,
                    "kind": kind,
                    "reached": reached,
                    "restored": restored,
                    "load_ms": loads,
                    "shared": shared,
                }
            ),
            flush=True,
        )
        step = restored
        if step > 350:
            step, sources = -1, {}
            for node in nodes:
                node.kill()
            folder = folder / "next"
            nodes = [fresh() for _ in range(NODES)]
    for node in nodes:
        node.kill()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
