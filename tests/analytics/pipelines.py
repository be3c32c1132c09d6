"""Pipeline traces made by walking a schedule (1F1B, interleaved too), with none of the analyzer's code."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa

TRANSFER_S = 0.001


@dataclass(kw_only=True)
class Pipeline:
    """What to record. `slow` maps (replica, stage) to a factor on compute."""

    replicas: int = 2
    stages: int = 3
    chunks: int = 1
    microbatches: int = 6
    steps: int = 3
    forward_s: float = 0.1
    jitter: float = 0.0
    seed: int = 0
    slow: dict[tuple[int, int], float] = field(default_factory=dict)
    ranks_for_each: int = 4
    without: tuple[str, ...] = ()
    first_step: int = 7

    @cached_property
    def rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)

    def table(self) -> pa.Table:
        rows: list[dict[str, object]] = []
        for step in range(self.first_step, self.first_step + self.steps):
            rows += self._step(step)
        rows = [row for row in rows if row["optype"] not in self.without]
        return pa.Table.from_pylist(rows)

    # -- schedule --

    def _order(self, stage: int) -> list[tuple[str, int, int]]:
        """(kind, chunk, microbatch) in the order in which the stage computes them."""
        total = self.microbatches * self.chunks
        if self.chunks == 1:
            warm = min(total, self.stages - stage - 1)
        else:
            warm = min(total, (self.stages - stage - 1) * 2 + (self.chunks - 1) * self.stages)
        forwards = [("forward", *self._virtual(k)) for k in range(total)]
        backwards = [("backward", self.chunks - 1 - c, m) for c, m in map(self._virtual, range(total))]
        order = forwards[:warm]
        for k in range(total - warm):
            order += [forwards[warm + k], backwards[k]]
        return order + backwards[total - warm :]

    def _virtual(self, k: int) -> tuple[int, int]:
        group, within = divmod(k, self.stages * self.chunks)
        chunk, microbatch = divmod(within, self.stages)
        if self.chunks == 1:
            return 0, k
        return chunk, group * self.stages + microbatch

    def _needs(self, kind: str, chunk: int, stage: int) -> tuple[int, int] | None:
        """(chunk, stage) of the compute on the other side of the receive; None at the model's ends."""
        model = chunk * self.stages + stage + (-1 if kind == "forward" else 1)
        if not 0 <= model < self.chunks * self.stages:
            return None
        return divmod(model, self.stages)

    # -- one step --

    def _step(self, step: int) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = []
        ends = []
        for replica in range(self.replicas):
            made, end = self._pipeline(step, replica)
            rows += made
            ends.append(end)
        reduced = [max(end[stage] for end in ends) + 0.022 for stage in range(self.stages)]
        meet = max(reduced)  # clipping waits for everybody
        for replica, end in enumerate(ends):
            for stage in range(self.stages):
                rows += self._epilogue(step, replica, stage, end[stage], reduced[stage], meet)
        return rows

    def _pipeline(self, step: int, replica: int) -> tuple[list[dict[str, object]], list[float]]:
        rows: list[dict[str, object]] = []
        orders = [self._order(stage) for stage in range(self.stages)]
        position = [0] * self.stages
        free = [0.05] * self.stages
        done: dict[tuple[str, int, int, int], float] = {}
        last = {(s, k): free[s] for s in range(self.stages) for k in ("forward", "backward")}
        numbers: dict[tuple[int, str], int] = {}

        def add(stage: int, kind: str, start: float, end: float, chunk: int, microbatch: int) -> None:
            seq = numbers.get((stage, kind), 0)
            numbers[stage, kind] = seq + 1
            rows.append(self._row(step, replica, stage, kind, start, end, seq, chunk, microbatch))

        for stage in range(self.stages):
            add(stage, "params-all-gather", 0.0, 0.05, 0, -1)
        while any(position[s] < len(orders[s]) for s in range(self.stages)):
            for stage in range(self.stages):
                while position[stage] < len(orders[stage]):
                    kind, chunk, microbatch = orders[stage][position[stage]]
                    needs = self._needs(kind, chunk, stage)
                    arrived = done.get((kind, microbatch, *needs)) if needs else free[stage]
                    if arrived is None:
                        break
                    posted = last[stage, kind]
                    ready = max(arrived, posted) + TRANSFER_S if needs else posted
                    if needs:
                        add(stage, f"{kind}-recv", posted, ready, -1, -1)
                    elif self.chunks > 1:
                        add(stage, f"{kind}-recv", posted, posted, -1, -1)
                    start = max(free[stage], ready)
                    end = start + self._duration(kind, replica, stage)
                    add(stage, f"{kind}-compute", start, end, chunk, microbatch)
                    done[kind, microbatch, chunk, stage] = end
                    free[stage] = last[stage, kind] = end
                    position[stage] += 1
        self._sends(rows, add, replica, step)
        for stage in range(self.stages):
            add(stage, "gc", free[stage], free[stage], -1, -1)
        return rows, free

    def _sends(self, rows: list[dict[str, object]], add: object, replica: int, step: int) -> None:
        """A send begins when its compute ends and ends with the receive on the other side."""
        for kind, toward in (("forward", 1), ("backward", -1)):
            for stage in range(self.stages):
                peer = (stage + toward) % self.stages
                receives = [
                    row
                    for row in rows
                    if row["stage"] == peer and row["optype"] == f"{kind}-recv" and row["duration"] > 0  # type: ignore[operator]
                ]
                computes = [r for r in rows if r["stage"] == stage and r["optype"] == f"{kind}-compute"]
                given = iter(receives)
                for compute in computes:
                    begin = compute["start_ts"] + compute["duration"]  # type: ignore[operator]
                    model = compute["gmc"] + toward  # type: ignore[operator]
                    if 0 <= model < self.chunks * self.stages:
                        receive = next(given)
                        end = receive["start_ts"] + receive["duration"]  # type: ignore[operator]
                        add(stage, f"{kind}-send", begin, end, -1, -1)  # type: ignore[operator]
                    elif self.chunks > 1:
                        add(stage, f"{kind}-send", begin, begin, -1, -1)  # type: ignore[operator]

    def _epilogue(
        self, step: int, replica: int, stage: int, end: float, reduced: float, meet: float
    ) -> list[dict[str, object]]:
        parts = [
            ("layernorm-grads-all-reduce", end, end + 0.002),
            ("grads-reduce-scatter", end + 0.002, reduced),
            ("optimizer-clip-main-grad", reduced, meet + 0.001),
            ("optimizer", meet + 0.001, meet + 0.021),
        ]
        return [
            self._row(step, replica, stage, kind, a, b, 0, 0 if "scatter" in kind else -1, -1)
            for kind, a, b in parts
        ]

    def _duration(self, kind: str, replica: int, stage: int) -> float:
        base = self.forward_s * (2 if kind == "backward" else 1) * self.slow.get((replica, stage), 1.0)
        return base * (1 + self.jitter * float(self.rng.standard_normal()))

    def _row(
        self,
        step: int,
        replica: int,
        stage: int,
        kind: str,
        start: float,
        end: float,
        seq: int,
        chunk: int,
        microbatch: int,
    ) -> dict[str, object]:
        return {
            "dp_rank": replica,
            "stage": stage,
            "rank": (stage * self.replicas + replica) * self.ranks_for_each,
            "step": step,
            "optype": kind,
            "start_ts": start,
            "duration": end - start,
            "seq_id": seq,
            "mc": chunk,
            "gmc": chunk * self.stages + stage if chunk >= 0 else -1,
            "mb_id": microbatch,
        }
