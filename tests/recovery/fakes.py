"""Fakes for the controller's tests: an agent that answers commands, a clock that is set, a journal kept."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from pulsetrain.protocol.messages import (
    FirstStep,
    Heartbeat,
    Held,
    HostStore,
    Leave,
    PairCheck,
    RankExit,
    RankStatus,
    Reply,
    SelfCheck,
    Start,
    Stop,
    decode,
)


class FakeClock:
    """Time stands still until told otherwise."""

    def __init__(self):
        self.now_s = 1000.0

    def monotonic_s(self):
        return self.now_s

    def wall_ns(self):
        return int(self.now_s * 1e9)


class KeptJournal:
    """Remembers events as (kind, node, detail)."""

    def __init__(self):
        self.events = []

    def event(self, kind, *, job, attempt, detail, node="", rank=-1, actor="controller"):
        self.events.append(
            {"kind": kind, "node": node, "rank": rank, "actor": actor, "attempt": attempt, "detail": detail}
        )

    def kinds(self):
        return [e["kind"] for e in self.events]

    def last(self, kind):
        return next(e for e in reversed(self.events) if e["kind"] == kind)


class FakeAgent:
    """A node whose ranks complete a step as soon as they are started. Not a real agent: no processes."""

    def __init__(self, controller, hello, *, sick=False, mute=(), stepless=False):
        self.controller, self.hello, self.sick, self.mute = controller, hello, sick, mute
        self.stepless, self.worked = stepless, 0
        self.commands = []
        self.steps = {}
        self.held = ()
        self.unrestorable = set()
        self.attempt = -1
        self.left = None
        self._seq = 0
        self.node = controller.connected(hello, self.send)
        self.send_heartbeat()

    async def send(self, text):
        command = decode(text)
        self.commands.append(command)
        if type(command) in self.mute:
            return
        asyncio.get_running_loop().call_soon(self.handle, command)

    def handle(self, command):
        data, error = {}, ""
        if isinstance(command, HostStore):
            data = {"port": 4242}
        elif isinstance(command, SelfCheck):
            data = {"ok": not self.sick, "failed": ["gemm"] if self.sick else []}
        elif isinstance(command, PairCheck):
            data = {"ok": True, "seconds": 0.1}
        elif isinstance(command, Start) and (lost := self._lost(command)):
            data, error = {"unrestorable": lost}, "it is whole nowhere"
        elif isinstance(command, Start):
            self.attempt = command.attempt
            first = command.node_rank * self.hello.nproc_per_node
            self.steps = {first + i: command.restore_step for i in range(self.hello.nproc_per_node)}
        elif isinstance(command, Leave):
            self.left = command
        self.controller.received(
            self.node, Reply(id=command.id, node=self.hello.node, error=error, data=data)
        )
        if isinstance(command, Stop):
            self.steps = {}
        if isinstance(command, Start) and not self.stepless and not error:
            self.complete(command.restore_step + 1)
            report = FirstStep(
                node=self.hello.node, ts_ns=0, attempt=self.attempt, step=0, stages_ns={"init": 5}
            )
            self.controller.received(self.node, report)

    def _lost(self, start):
        first = start.node_rank * self.hello.nproc_per_node
        mine = range(first, first + self.hello.nproc_per_node)
        return next(([r, s] for r, s in self.unrestorable if r in mine and s == start.restore_step), None)

    def complete(self, step, peer_of=()):
        """All ranks complete `step` and keep it, beside copies of `peer_of` ranks."""
        self.steps = dict.fromkeys(self.steps, step)
        self.held = tuple(Held(rank=r, step=step, tier="memory") for r in self.steps)
        self.held += tuple(Held(rank=r, step=step, tier="peer") for r in peer_of)
        self.send_heartbeat()

    def send_heartbeat(self):
        self._seq += 1
        ranks = tuple(
            RankStatus(
                rank=r,
                local_rank=i,
                pid=100 + r,
                state="running",
                last_step=s,
                last_phase="forward",
                phase_age_ns=0,
                progress=self.worked if self.stepless else s,
                progress_age_ns=0,
            )
            for i, (r, s) in enumerate(self.steps.items())
        )
        beat = Heartbeat(
            node=self.hello.node,
            seq=self._seq,
            ts_ns=0,
            job=self.hello.job,
            attempt=self.attempt,
            ranks=ranks,
            held=self.held,
        )
        self.controller.received(self.node, beat)

    def rank_exits(self, rank, code, lines=()):
        exit_ = RankExit(
            node=self.hello.node,
            ts_ns=int(1000e9),
            job=self.hello.job,
            attempt=self.attempt,
            rank=rank,
            pid=1,
            code=code,
            last_lines=lines,
        )
        self.controller.received(self.node, exit_)

    def reconnect(self, **changes):
        self.hello = replace(self.hello, **changes)
        self.node = self.controller.connected(self.hello, self.send)

    def drop(self):
        self.controller.disconnected(self.node, self.send)
