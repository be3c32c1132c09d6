"""How a simulated agent answers the hub's commands. It knows no connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

from pulsetrain.core.json import JsonObject
from pulsetrain.protocol.messages import (
    ArithmeticCheck,
    Command,
    DumpRanks,
    DumpStacks,
    HoldRanks,
    HostStore,
    Leave,
    LinkSend,
    LinkSink,
    Message,
    PairCheck,
    Ping,
    Profile,
    ReadRas,
    ReplayCheck,
    SaveFrom,
    SelfCheck,
    ShareDevices,
    Start,
    Stop,
    WorldNode,
    decode,
)
from pulsetrain.simulate.live.job import LiveJob
from pulsetrain.simulate.live.training import BACKWARD, NORM, OPTIMIZER, REDUCE, Positions

SPAWN_S = 0.15  # to fork the ranks of a node
STOP_S = 0.05
STACKS_S = 0.1  # py-spy on eight processes
STORE_PORT = 29_500
LINK_BITS_PER_S = 1e11
STANDS_IN = "wait_for_device (simulated_train.py:57)"
_WORLD = ',"world":'  # the last part of a launch
_LEAVES: Mapping[int, str] = {
    BACKWARD: "backward (simulated_train.py:61)",
    REDUCE: "all_reduce_gradients (simulated_train.py:70)",
    NORM: "clip_gradients (simulated_train.py:74)",
    OPTIMIZER: "optimizer_step (simulated_train.py:78)",
}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What an agent replies, and after how long."""

    after_s: float
    data: JsonObject
    error: str = ""


class CommandReader:
    """Decodes commands. The world of a launch, which is the same for all nodes, is decoded once."""

    def __init__(self) -> None:
        self._text = ""
        self._world: tuple[WorldNode, ...] = ()

    def read(self, text: str) -> Message:
        """The command in `text`. Raises `CorruptData`."""
        begin = text.rfind(_WORLD)
        if begin < 0 or text[begin:] != self._text:
            message = decode(text)
            if isinstance(message, Start) and begin >= 0:
                self._text, self._world = text[begin:], message.world
            return message
        start = decode(f"{text[:begin]}{_WORLD}[]}}")
        return replace(cast("Start", start), world=self._world)


def answer(command: Command, job: LiveJob, node: str, now_s: float) -> Answer:
    """What the agent of `node` answers. What the command changes in the job is done by `carry_out`."""
    match command:
        case Ping():
            return Answer(after_s=0.0, data={})
        case HostStore():
            return Answer(after_s=0.01, data={"port": STORE_PORT})
        case Start():
            first = command.node_rank * job.fleet.ranks_per_node
            ranks = range(first, first + job.fleet.ranks_per_node)
            load_ns = {} if command.restore_step < 0 else {str(r): int(0.3e9) for r in ranks}
            return Answer(after_s=SPAWN_S, data={"load_ns": load_ns, "spawn_ns": int(SPAWN_S * 1e9)})
        case Stop():
            return Answer(after_s=STOP_S, data={})
        case SaveFrom():
            return Answer(after_s=0.01, data={})
        case ShareDevices():
            return Answer(after_s=0.01, data={"devices": {}, "late": []})
        case HoldRanks():
            return Answer(after_s=0.01, data={"ranks": {}})
        case DumpRanks():
            return Answer(after_s=0.01, data={}, error="simulated ranks have no processes")
        case SelfCheck():
            return Answer(after_s=command.seconds, data=_self_check(job, node, command.seconds))
        case PairCheck():
            return Answer(after_s=0.05, data={"ok": True, "seconds": 0.05})
        case LinkSink():
            return Answer(after_s=0.01, data={"port": STORE_PORT if command.seconds > 0 else 0})
        case LinkSend():
            return Answer(after_s=command.seconds, data={"bits_per_s": LINK_BITS_PER_S, "resent_share": 0.0})
        case ArithmeticCheck():
            return Answer(after_s=command.seconds, data={"ok": True, "wrong": []})
        case ReplayCheck():
            return Answer(after_s=command.seconds if command.timeout_s else 0.0, data={"ok": True})
        case DumpStacks():
            return Answer(after_s=STACKS_S, data=_stacks(command, job, node, now_s))
        case ReadRas():
            return Answer(after_s=0.01, data={"why_not": "simulated ranks have no NCCL"})
        case Profile():
            failed = {str(rank): "a simulated rank has no profile" for rank in command.ranks}
            return Answer(after_s=0.01, data={"profiles": {}, "failed": failed})
        case Leave():
            return Answer(after_s=STOP_S, data={})


def carry_out(command: Command, job: LiveJob, node: str, now_s: float) -> None:
    """Do what a command asks for."""
    match command:
        case Start():
            job.start(node, command, now_s)
        case Stop():
            job.stop(node)
        case Leave():
            job.stop(node)
            job.forget(node)
        case _:
            pass


def _self_check(job: LiveJob, node: str, seconds: float) -> JsonObject:
    """The report of the self-check suite on a healthy or a broken machine."""
    ok = not job.fails_check(node)
    row = {
        "check": "gemm",
        "ok": ok,
        "value": 1e12 * ok,
        "unit": "flop/s",
        "limit": 1e10,
        "detail": "simulated",
    }
    failed = [] if ok else ["gemm"]
    return {"ok": ok, "failed": failed, "device": "simulated", "seconds": seconds, "checks": [row]}


def _stacks(command: DumpStacks, job: LiveJob, node: str, now_s: float) -> JsonObject:
    """Where the code of a node's ranks stands."""
    ranks = [r for r in job.ranks(node) if (not command.ranks or r in command.ranks) and r not in job.exits]
    ranks = ranks[:1] if command.first_only else ranks
    where = job.positions(ranks, now_s)
    hung = job.hung()
    by_leaf: dict[str, list[int]] = {}
    for place, rank in enumerate(ranks):
        leaf = STANDS_IN if rank in hung else _leaf(where, place)
        by_leaf.setdefault(leaf, []).append(rank)
    base = ["<module> (simulated_train.py:88)", "train_step (simulated_train.py:41)"]
    stacks = [
        {"thread": "MainThread", "frames": [*base, leaf], "ranks": at} for leaf, at in sorted(by_leaf.items())
    ]
    details = {str(r): {"gil": "", "place": leaf} for leaf, at in by_leaf.items() for r in at}
    return {"stacks": stacks, "blind": {}, "details": details}


def _leaf(where: Positions | None, place: int) -> str:
    phase = 0 if where is None else int(where.phase[place])
    return _LEAVES.get(phase, "forward (simulated_train.py:52)")
