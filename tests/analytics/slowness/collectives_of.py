"""The operations of jobs that name no steps, as `analysis.operations` has them, simulated."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pulsetrain.analytics.slowness import straggler
from pulsetrain.analytics.slowness.stepless import rounds_from, verdicts

MS = 1_000_000
BEGAN_NS = 1_800_000_000 * 10**9
NOBODY = pa.table({"rank": pa.array([], pa.int64()), "node": pa.array([], pa.string())})
NO_LOSSES = pa.table({n: pa.array([], pa.int64()) for n in ("rank", "start_ns", "lost_ns")} | {"phase": []})


class Job:
    """Ranks that compute and communicate. `factor` of a step stretches compute, `clock` are nodes' errors."""

    def __init__(self, ranks=4, *, per_node=2, noise=0.03, seed=0, factor=None, clock=(), drift=()):
        self.ranks, self.per_node, self.noise = ranks, per_node, noise
        self.rng = np.random.default_rng(seed)
        self.factor = factor or (lambda step: np.ones(ranks))
        self.clock, self.drift = clock, drift
        self.at = np.zeros(ranks)
        self.seq = {}
        self.rows = []
        self.step = 0

    def compute(self, ms, ranks=None, factor=True):
        chosen = np.arange(self.ranks) if ranks is None else np.asarray(ranks)
        took = ms * MS * np.exp(self.noise * self.rng.standard_normal(len(chosen)))
        self.at[chosen] += took * (self.factor(self.step)[chosen] if factor else 1.0)

    def collective(self, phase, groups, size, *, wait=True, took=0.3, known=True):
        """Every group of ranks does this. Without `wait` it ends by itself."""
        for group in groups:
            name = "g" + "_".join(map(str, group))
            seq = self.seq[name] = self.seq.get(name, 0) + 1
            start = self.at[group]
            end = start.max() + took * MS * self.rng.uniform(0.8, 1.2) + self.rng.exponential(5e3, len(group))
            for rank, begin, done in zip(group, start, end, strict=True):
                blocked = (done - begin if wait else 0.0) if known else -1
                self.row(rank, name, seq, phase, -1, size, begin, done, blocked)
            if wait:
                self.at[group] = end

    def transfer(self, source, target, size):
        """A send that nobody waits for, and a receive."""
        key = (source, target)
        seq = self.seq[key] = self.seq.get(key, 0) + 1
        sent, began = self.at[source], self.at[target]
        end = max(began, sent) + 0.2 * MS
        self.row(source, "pp", seq, "send", target, size, sent, end, 0)
        self.row(target, "pp", seq, "recv", source, size, began, end, end - began)
        self.at[source] += 0.01 * MS
        self.at[target] = end

    def row(self, rank, group, seq, phase, peer, size, start, end, blocked):
        node = rank // self.per_node
        error = self.clock[node] if node < len(self.clock) else 0.0
        rate = self.drift[node] if node < len(self.drift) else 0.0
        begin, done = (int(t + error + rate * t) + BEGAN_NS for t in (start, end))
        self.rows.append((rank, f"n{node}", group, seq, phase, peer, size, begin, done, int(blocked)))

    def table(self, seed=None):
        names = ("rank", "node", "group", "seq", "phase", "peer", "bytes", "start_ns", "end_ns", "blocked_ns")
        rows = list(self.rows)
        if seed is not None:
            np.random.default_rng(seed).shuffle(rows)
        columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
        return pa.table(columns)


def everybody(job):
    return [list(range(job.ranks))]


def ddp(job, steps, buckets=5, evaluate_every=0, save_every=0, save_ms=5000.0):
    for step in range(steps):
        job.step = step
        job.compute(40)
        for bucket in range(buckets):
            job.compute(80 / buckets)
            last = bucket == buckets - 1
            job.collective("all_reduce", everybody(job), 1 << (20 + bucket), wait=last)
        job.compute(10)
        if evaluate_every and step % evaluate_every == evaluate_every - 1:
            for _ in range(3):
                job.compute(40)
                job.collective("all_gather", everybody(job), 512)
        if save_every and step % save_every == save_every - 1:
            job.compute(save_ms, [0], factor=False)
    return job


def fsdp(job, steps, layers=6):
    for step in range(steps):
        job.step = step
        for way, ms in (("all_gather", 6), ("all_gather", 12)):
            for _ in range(layers):
                job.collective(way, everybody(job), 1 << 22)
                job.compute(ms)
        for _ in range(layers):
            job.collective("reduce_scatter", everybody(job), 1 << 22)
        job.compute(8)
    return job


def tensor_parallel(job, steps, layers=4):
    """Two ranks share each layer, and two such pairs are replicas."""
    half = job.ranks // 2
    pairs = [[i, i + 1] for i in range(0, job.ranks, 2)]
    replicas = [[i, i + 2] for i in range(half)] if job.ranks == 4 else []
    for step in range(steps):
        job.step = step
        for _ in range(2 * layers):
            job.compute(9)
            job.collective("all_reduce", pairs, 1 << 18)
        job.collective("all_reduce", replicas, 1 << 24)
        job.compute(6)
    return job


def pipeline(job, steps, microbatches=4):
    """One rank a stage, all forward and then all backward."""
    for step in range(steps):
        job.step = step
        for forth in (True, False):
            for _ in range(microbatches):
                order = range(job.ranks) if forth else range(job.ranks - 1, -1, -1)
                for rank in order:
                    before = rank - 1 if forth else rank + 1
                    if 0 <= before < job.ranks:
                        job.transfer(before, rank, 1 << 16)
                    job.compute(10 if forth else 20, [rank])
        job.compute(5)
    return job


def said_of(job, losses=NO_LOSSES, topology=NOBODY, seed=None):
    return verdicts(rounds_from(job.table(seed), losses, topology, job="j", attempt=0, now_ns=BEGAN_NS))


def named(verdicts_):
    return {v.subject for v in verdicts_ if getattr(v, "kind", "") == straggler.NAME}


def slow(rank, ratio, ranks=4, since=0):
    def factor(step):
        result = np.ones(ranks)
        result[rank] = ratio if step >= since else 1.0
        return result

    return factor
