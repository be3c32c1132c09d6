"""A small model of an NCCL job that leaves Flight Recorder dumps: hosts enqueue ahead, devices run in order.

Each rank has a program of operations. Its host enqueues until it is `ahead` operations before its device or
reaches its fault; its device runs them in program order, each when every member's device has come to it.
"""

from __future__ import annotations

import functools
import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Op:
    group: str  # name of the group
    op: str  # all_reduce ..., or "p2p:A:B" for a transfer from A to B
    index: int  # number in the group, or in the pair


@dataclass
class Job:
    """16 ranks, TP4 x DP2 x PP2, expert groups of eight: the shape of a Megatron MoE job."""

    steps: int = 3
    microbatches: int = 3
    groups: dict[str, tuple[str, tuple[int, ...]]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        def add(desc: str, members: Sequence[int]) -> None:
            self.groups[str(len(self.groups))] = (desc, tuple(members))

        add("default_pg", range(16))
        for base in range(0, 16, 4):
            add("TENSOR", range(base, base + 4))
        for base in (0, 8):
            add("EXPERT", range(base, base + 8))
        for base in (0, 8):
            add("EXPERT_TENSOR", range(base, base + 8))
        for rank in range(8):
            add("PIPELINE", (rank, rank + 8))
        for rank in (*range(4), *range(8, 12)):
            add("DATA", (rank, rank + 4))

    def named(self, desc: str, rank: int) -> str:
        return next(n for n, (d, m) in self.groups.items() if d == desc and rank in m)

    def program(self, rank: int) -> list[Op]:
        counts: dict[str, int] = {}
        program: list[Op] = []

        def do(desc: str, op: str) -> None:
            group = self.named(desc, rank)
            key = f"{group}/{op}" if op.startswith("p2p") else group
            counts[key] = counts.get(key, 0) + 1
            program.append(Op(group, op, counts[key]))

        first, other = rank < 8, (rank + 8) % 16
        for _ in range(self.steps):
            for _ in range(self.microbatches):
                if not first:
                    do("PIPELINE", f"p2p:{other}:{rank}")
                for desc, op in (
                    ("TENSOR", "_all_gather_base"),
                    ("EXPERT", "all_to_all"),
                    ("EXPERT_TENSOR", "_all_gather_base"),
                    ("EXPERT", "all_to_all"),
                    ("TENSOR", "_reduce_scatter_base"),
                ):
                    do(desc, op)
                do("PIPELINE", f"p2p:{rank}:{other}")
                if first:
                    do("PIPELINE", f"p2p:{other}:{rank}")
            do("DATA", "all_reduce")
            do("default_pg", "all_reduce")
        return program

    def members(self, op: Op) -> tuple[int, ...]:
        if op.op.startswith("p2p"):
            return tuple(int(n) for n in op.op.split(":")[1:])
        return self.groups[op.group][1]


@functools.cache
def _programs(steps: int, microbatches: int) -> dict[int, list[Op]]:
    """The programs of all ranks. Nobody changes them."""
    job = Job(steps, microbatches)
    return {rank: job.program(rank) for rank in range(16)}


@dataclass
class Recording:
    """How far each host and device came: counts of operations enqueued and completed."""

    job: Job
    enqueued: dict[int, int]
    completed: dict[int, int]
    programs: dict[int, list[Op]]


def run(
    job: Job,
    *,
    host_stops: Mapping[int, int] | None = None,
    device_stops: Mapping[int, int] | None = None,
    ahead: int = 8,
) -> Recording:
    """Run until nothing moves. A host stops before enqueueing operation n, a device before running it."""
    programs = _programs(job.steps, job.microbatches)
    enqueued = dict.fromkeys(programs, 0)
    completed = dict.fromkeys(programs, 0)
    host_stops, device_stops = host_stops or {}, device_stops or {}
    moved = True
    while moved:
        moved = False
        for rank, program in programs.items():
            limit = min(len(program), completed[rank] + ahead, host_stops.get(rank, len(program)))
            if enqueued[rank] < limit:
                enqueued[rank], moved = limit, True
        for rank, program in programs.items():
            at = completed[rank]
            if at >= enqueued[rank] or at >= device_stops.get(rank, len(program)):
                continue
            members = job.members(program[at])
            if all(_at(program[at], m, programs, enqueued, completed, device_stops) for m in members):
                for m in members:
                    completed[m] += 1
                moved = True
    return Recording(job, enqueued, completed, programs)


def _at(op, rank, programs, enqueued, completed, device_stops) -> bool:
    at = completed[rank]
    stops = device_stops.get(rank, len(programs[rank]))
    return at < enqueued[rank] and at < stops and programs[rank][at] == op


def dump(recording: Recording, rank: int, *, timing: bool = False, complete: bool = False) -> dict[str, Any]:
    """The dump of one rank in the format of the recorder; only what is active unless `complete`."""
    job, program = recording.job, recording.programs[rank]
    own = {n: g for n, g in job.groups.items() if rank in g[1]}
    number = {name: 3 * i for i, name in enumerate(own)}
    counts = {name: [0, 0] for name in own}  # collectives, transfers
    status = {str(number[n]): dict.fromkeys(_STATUS, -1 if n else 0) for n in own}
    entries = []
    for place, op in enumerate(program[: recording.enqueued[rank]]):
        p2p = op.op.startswith("p2p")
        counts[op.group][p2p] += 1
        done = place < recording.completed[rank]
        state = status[str(number[op.group])]
        state["last_enqueued_collective"] = counts[op.group][p2p]
        if done:
            state["last_completed_collective"] = counts[op.group][p2p]
        if complete or not done:
            entries.append(_entry(recording, rank, place, op, counts[op.group], number, timing, done))
    return {
        "version": "2.9",
        "pg_config": {n: {"name": n, "desc": d, "ranks": json.dumps(m)} for n, (d, m) in own.items()},
        "pg_status": status,
        "entries": entries,
    }


_STATUS = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")


def _entry(recording, rank, place, op, counts, number, timing, done) -> dict[str, Any]:
    members = recording.job.groups[op.group][1]
    name = f"nccl:{op.op}"
    if op.op.startswith("p2p"):
        a, b = (members.index(m) for m in recording.job.members(op))
        name = f"nccl:send {a}->{b}" if members[a] == rank else f"nccl:recv {b}<-{a}"
    uneven = rank if "all_to_all" in name else 0
    started = timing and (done or place == recording.completed[rank])
    return {
        "record_id": place,
        "pg_id": number[op.group],
        "process_group": (op.group, recording.job.groups[op.group][0]),
        "collective_seq_id": counts[0],
        "p2p_seq_id": counts[1],
        "op_id": place,
        "profiling_name": name,
        "time_created_ns": 1_700_000_000_000_000_000 + place * 1_000_000,
        "input_sizes": [[2048 + uneven, 64]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[2048, 64]],
        "output_dtypes": ["BFloat16"],
        "state": "completed" if done else "started" if started else "scheduled",
        "time_discovered_started_ns": 1 if started else None,
        "time_discovered_completed_ns": 2 if done else None,
        "retired": done,
        "timeout_ms": 180000,
        "is_p2p": op.op.startswith("p2p"),
    }


def write(
    recording: Recording, folder: Path, *, dead: Sequence[int] = (), as_json: bool = False, **how: bool
) -> Path:
    """All dumps but those of `dead` ranks."""
    for rank in recording.programs:
        if rank in dead:
            continue
        content = dump(recording, rank, **how)
        if as_json:
            (folder / f"dump_{rank}.json").write_text(json.dumps(content))
        else:
            (folder / f"_dump_{rank}").write_bytes(pickle.dumps(content))
    return folder


def gloo_dump(
    last: int, *, group: tuple[str, str] = ("0", "default_pg"), pending: bool = True, op_id: int | None = None
) -> dict[str, Any]:
    """A dump as gloo's recorder writes it: pg_config of no use, states never updated, no transfers."""
    entries = [
        {
            "record_id": seq,
            "pg_id": 0,
            "process_group": group,
            "collective_seq_id": seq,
            "p2p_seq_id": 0,
            "op_id": seq if op_id is None else op_id + seq,
            "profiling_name": "gloo:all_reduce",
            "time_created_ns": seq,
            "input_sizes": [[4]],
            "input_dtypes": ["Float"],
            "output_sizes": [[4]],
            "output_dtypes": ["Float"],
            "state": "scheduled",
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": None,
            "retired": not (pending and seq == last),
            "is_p2p": False,
        }
        for seq in range(1, last + 1)
    ]
    status = {"0": dict(zip(_STATUS, (last, -1, last - pending), strict=True))}
    config = {"": {"name": "", "desc": "", "ranks": "[0, 1]"}}
    return {"version": "2.10", "pg_config": config, "pg_status": status, "entries": entries}


def written(folder: Path, contents: Mapping[int, Mapping[str, Any]]) -> Path:
    """The folder, with one pickled dump for each rank."""
    for rank, content in contents.items():
        (folder / f"_dump_{rank}").write_bytes(pickle.dumps(content))
    return folder
