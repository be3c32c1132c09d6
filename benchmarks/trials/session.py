"""One real job of eight processes on four local nodes, watched through the product's own parts.

A zygote forks the ranks, as an agent does, and they write into rings. A session drains these into a chDB
store. `watch` judges the live state and `analyze` the stored records, as in the hub. Only the network between
agents and hub is left out.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

from pulsetrain.agent.processes.rank import NodeIdentity, Program, Rank
from pulsetrain.agent.processes.ranks import Ranks
from pulsetrain.agent.processes.zygote import Zygote
from pulsetrain.analytics import watch
from pulsetrain.analytics.analyze import StepRange, analyze
from pulsetrain.analytics.verdict import Verdict
from pulsetrain.checkpoint.memory.arena import create_arena
from pulsetrain.faults import outside
from pulsetrain.faults.plan import Fault, dump
from pulsetrain.protocol.messages import RankExit, Start, WorldNode
from pulsetrain.records.arrow import to_table
from pulsetrain.records.columns import Columns
from pulsetrain.stream.store.clickhouse import Store, open_store
from trials.job import PLAN
from trials.kinds import RANKS, RANKS_PER_NODE

JOB = Path(__file__).with_name("job.py")
NODES = RANKS // RANKS_PER_NODE
WATCH = watch.WatchConfig(patient_s=3.0)
"""the product's thresholds, with 3 s instead of a minute for data loading and checkpoints"""
WORLD = tuple(
    WorldNode(node=f"n{i}", node_rank=i, address=f"127.0.0.{i + 1}", peer_port=0, nproc=RANKS_PER_NODE)
    for i in range(NODES)
)
INSERT_S = 0.25


class Bench:
    """What all sessions share: a zygote, and a store in a temporary folder."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="campaign-")
        self.folder = Path(self._folder.name)
        self.zygote = Zygote.start(preload=("pulsetrain.faults.inside", "torch.utils.data"))
        self.store: Store = open_store(f"chdb://{self.folder / 'store'}")
        self.store.migrate()
        self.zygote.wait_ready(60.0)

    def close(self) -> None:
        """End everything that was started."""
        self.zygote.close()
        self.store.close()
        self._folder.cleanup()


class Session:
    """One launch of the job, under a plan of faults."""

    def __init__(self, bench: Bench, name: str, *, steps: int, mode: str, faults: Sequence[Fault]) -> None:
        self.name, self.steps = name, steps
        self._bench = bench
        self._folder = bench.folder / name
        self._folder.mkdir()
        self._rows: dict[str, list[Columns]] = {}
        self._inserted_s = 0.0
        self._step_times: deque[tuple[int, float]] = deque(maxlen=50)
        self.last_step = -1
        self.exits: list[RankExit] = []
        self._identities = {node.node: self._identity(node) for node in WORLD}
        program = Program(argv=(str(JOB), str(steps), mode, str(self._folder)), cwd=JOB.parent)
        self._nodes = [
            Ranks(identity, program, self._folder / identity.node, self._ended, ring_slots=8192)
            for identity in self._identities.values()
        ]
        (self._folder / PLAN).write_text(dump(faults))
        self._arenas = [create_arena() for _ in range(RANKS)]

    def _identity(self, node: WorldNode) -> NodeIdentity:
        return NodeIdentity(
            job=self.name, node=node.node, address=node.address, nproc_per_node=RANKS_PER_NODE
        )

    def start(self) -> None:
        """Fork all ranks, and return at once."""
        zygote = self._bench.zygote
        self._store_pid, answer = zygote.serve("pulsetrain.agent.processes.rendezvous:host", {}, 20.0)
        arenas = dict(enumerate(self._arenas))
        for node, ranks in zip(WORLD, self._nodes, strict=True):
            start = Start(
                id=0,
                job=self.name,
                attempt=0,
                node_rank=node.node_rank,
                world=WORLD,
                store_address="127.0.0.1",
                store_port=int(str(answer["port"])),
            )
            ranks.spawn(zygote, start, arenas)

    def _ended(self, rank: Rank) -> None:
        node = WORLD[rank.rank // RANKS_PER_NODE].node
        self.exits.append(rank.report(self._identities[node], time.time_ns()))

    @property
    def ranks(self) -> list[Rank]:
        return [r for node in self._nodes for r in node.all]

    @property
    def over(self) -> bool:
        """Whether no rank is left."""
        return all(r.code is not None for r in self.ranks)

    def drain(self) -> None:
        """Drain every ring. Write to the store every `INSERT_S`."""
        now_ns = time.time_ns()
        for rank in self.ranks:
            for batch in rank.batches(now_ns):
                self._rows.setdefault(batch.record, []).append(batch)
        if time.monotonic() - self._inserted_s >= INSERT_S:
            self.flush()

    def flush(self) -> None:
        """Write what was drained."""
        self._inserted_s = time.monotonic()
        rows, self._rows = self._rows, {}
        for record, parts in rows.items():
            self._bench.store.insert(record, to_table(Columns.concat(parts)))

    def view(self) -> watch.JobView:
        """Return what the hub would know now."""
        now_ns = time.time_ns()
        statuses = tuple(r.status() for r in self.ranks)
        self.last_step = max((s.last_step for s in statuses), default=-1)
        now_s = time.monotonic()
        if self.last_step >= 0 and (not self._step_times or self.last_step > self._step_times[-1][0]):
            self._step_times.append((self.last_step, now_s))
        moves = [(t1 - t0) / (s1 - s0) for (s0, t0), (s1, t1) in pairwise(self._step_times)]
        return watch.JobView(
            job=self.name,
            attempt=0,
            now_ns=now_ns,
            ranks=statuses,
            exits=tuple(self.exits),
            median_step_ns=int(median(moves) * 1e9) if moves else 0,
            first_step_done=self.last_step >= 0,
            world=WORLD,
        )

    def analyze(self, since: int, until: int, now_ns: int) -> list[Verdict]:
        """Return every analyzer's verdict on these steps, as of their end, which was at `now_ns`."""
        self.drain()
        self.flush()
        steps = StepRange(since=since, until=until)
        return analyze(self._bench.store, self.name, steps, attempt=0, now_ns=now_ns)

    def resume(self, ranks: Sequence[int]) -> None:
        """Continue these ranks and what they started."""
        for rank in self.ranks:
            if rank.rank in ranks and rank.code is None:
                outside.resume([rank.pid, *outside.descendants(rank.pid)])

    def end(self) -> None:
        """Kill what is left."""
        for node in self._nodes:
            node.stop(self._bench.zygote, grace_s=0)
            node.close()
        self._bench.zygote.signal(self._store_pid, signal.SIGKILL)
        for fd in self._arenas:
            os.close(fd)
