"""Ranks that replay a part of training for a check. They are no attempt of the job. Nothing watches them."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

import structlog

from pulsetrain.agent.output import last_lines, open_log
from pulsetrain.agent.processes.rank import LAST_LINES, NodeIdentity, Program, torchrun_environment
from pulsetrain.agent.processes.zygote import OnExit
from pulsetrain.agent.processes.zygote_protocol import RankProcess
from pulsetrain.agent.store_check import why_unreachable
from pulsetrain.core.errors import Unavailable
from pulsetrain.core.json import JsonObject
from pulsetrain.diagnostics.measurement import used_by_others
from pulsetrain.protocol.exits import exit_text, last_error
from pulsetrain.protocol.messages import ReplayCheck, ranks_of_node

log = structlog.get_logger()

OWN = "pulsetrain.diagnostics.replay"
REPLAY = "PULSETRAIN_REPLAY"
"""is 1 for a script that replays"""
ENDED = "the replay was ended"
END_S = 5.0
FAILED_TOGETHER_S = 1.0
"""for other ranks of the node that fail as well: the first one may only have lost its connection to them"""
_CONNECTION = (
    "Connection closed by",
    "Connection reset by",
    "Connection refused",
    "Broken pipe",
    "remote process exited",
    "ncclRemoteError",
)  # gloo's and NCCL's words for a peer that is gone


class Forks(Protocol):
    """Forks ranks, and sends signals to them."""

    @property
    def ready(self) -> bool: ...
    @property
    def dead(self) -> bool: ...
    def spawn(self, rank: RankProcess, on_exit: OnExit) -> int: ...
    def signal(self, pid: int, signum: int) -> None: ...


@dataclass(kw_only=True)
class _Rank:
    rank: int
    log: Path
    pid: int = -1
    code: int | None = None


class _NotJudged(Exception):
    """The replay says nothing about this machine. The text says why."""


class ReplayRanks:
    """The ranks of this node that replay, one replay at a time. Thread-safe.

    They run `command`, None for the project's own training. Their output goes to `log_dir`.
    """

    def __init__(self, command: Program | None = None, log_dir: Path = Path()) -> None:
        self._command, self._log_dir = command, log_dir
        self._turn, self._changed = threading.Lock(), threading.Condition()
        self._ranks: list[_Rank] = []
        self._ends = 0

    @property
    def kind(self) -> Literal["own", "command"]:
        """What is trained."""
        return "command" if self._command else "own"

    def run(self, zygote: Forks, identity: NodeIdentity, check: ReplayCheck) -> JsonObject:
        """Run this node's part. See `ReplayCheck` for what is returned."""
        number = self._end()
        if check.timeout_s <= 0:
            return {}
        with self._turn:
            began_s = time.monotonic()
            try:
                self._spawn(zygote, identity, check, number)
                error = self._outcome(zygote, began_s + check.timeout_s, number)
                late = not error and not self._all_ended()
            except _NotJudged as why:
                return {"ok": False, "not_judged": str(why), "error": ""}
            finally:
                self._kill(zygote)
            log = str(self._ranks[0].log.parent)
            error = f"it did not end in {check.timeout_s:g} s" if late else error
            seconds = time.monotonic() - began_s
            return {"ok": not error, "error": error, "late": late, "seconds": seconds, "log": log}

    def end(self) -> None:
        """End the replay that runs, if one does. Returns once its ranks have ended, or do not end."""
        self._end()
        with self._turn:
            pass

    def _end(self) -> int:
        """Tell replays that began before to end. Returns the number of those that begin now."""
        with self._changed:
            self._ends += 1
            self._changed.notify_all()
            return self._ends

    def _spawn(self, zygote: Forks, identity: NodeIdentity, check: ReplayCheck, number: int) -> None:
        if not zygote.ready or zygote.dead:
            raise _NotJudged("the process that ranks are forked from is being started anew")
        why = why_unreachable(check.store_address, check.store_port)
        if why:
            raise _NotJudged(f"it does not reach the others: {why}")
        own = ranks_of_node(check.members.index(identity.node), identity.nproc_per_node)
        folder = self._log_dir / f"replay_{check.number}" / identity.node  # nodes may share the folder
        with contextlib.suppress(OSError):  # the output then goes nowhere
            folder.mkdir(parents=True, exist_ok=True)
        self._ranks = [_Rank(rank=rank, log=folder / f"rank_{rank}.log") for rank in own]
        for rank in self._ranks:
            if number != self._ends:
                raise _NotJudged(ENDED)
            try:
                self._fork(zygote, identity, check, rank)
            except Unavailable as failure:
                raise _NotJudged(str(failure)) from failure

    def _fork(self, zygote: Forks, identity: NodeIdentity, check: ReplayCheck, rank: _Rank) -> None:
        program = self._command if check.command and self._command else _own(check.seconds, rank.log.parent)
        nproc, store = identity.nproc_per_node, (check.store_address, check.store_port)
        environment = {
            **torchrun_environment(rank.rank, len(check.members) * nproc, nproc, store),
            "ROLE_NAME": program.role,
            "TORCHELASTIC_RUN_ID": f"{identity.job}-replay",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "PULSETRAIN_ADDRESS": identity.address,
            REPLAY: "1",
        }
        output = open_log(rank.log)
        try:
            process = RankProcess(
                argv=program.words(rank.rank % nproc),
                mode=program.mode,
                env=environment,
                cwd=program.cwd,
                stdout=output,
                stderr=output,
                files={},
            )
            rank.pid = zygote.spawn(process, partial(self._ended, rank))
        finally:
            os.close(output)

    def _ended(self, rank: _Rank, code: int) -> None:
        with self._changed:
            rank.code = code
            self._changed.notify_all()

    def _outcome(self, zygote: Forks, end_s: float, number: int) -> str:
        """Wait until all have ended, one has failed, or the time is up. Why one failed, "" where none did."""
        with self._changed:
            while number == self._ends and not self._all_ended() and not self._failed():
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    return ""
                self._changed.wait(left_s)
            if self._failed():
                self._changed.wait_for(lambda: number != self._ends or self._all_ended(), FAILED_TOGETHER_S)
            if number != self._ends:
                raise _NotJudged(ENDED)
            failed = self._failed()
        if failed and (zygote.dead or all(rank.code == -signal.SIGKILL for rank in failed)):
            raise _NotJudged("its ranks were killed from outside, as where memory is short")
        return _error(failed) if failed else ""

    def _failed(self) -> list[_Rank]:
        return [rank for rank in self._ranks if rank.code]

    def _all_ended(self) -> bool:
        return all(rank.code is not None for rank in self._ranks)

    def _kill(self, zygote: Forks) -> None:
        """End what is left. One that hangs in the kernel is told in the log."""
        running = [rank for rank in self._ranks if rank.pid > 0]
        for rank in running:
            if rank.code is None:
                zygote.signal(rank.pid, signal.SIGKILL)
        with self._changed:
            ended = self._changed.wait_for(lambda: all(r.code is not None for r in running), END_S)
        if not ended:
            left = [rank.pid for rank in running if rank.code is None]
            log.error("replay_ranks_left", pids=left, seconds=END_S)


def _own(seconds: float, folder: Path) -> Program:
    """It runs in a folder without modules: one of the user's must not take the place of one of ours."""
    cwd = folder if folder.is_dir() else Path("/")
    return Program(argv=(OWN, "--seconds", f"{seconds:g}"), mode="module", cwd=cwd)


def _error(ranks: Sequence[_Rank]) -> str:
    """What a rank said that failed, rather by itself than because another one had ended.

    Raises `_NotJudged` where one of them had too little memory.
    """
    said = [(rank, last_error(last_lines(rank.log, LAST_LINES))) for rank in ranks]
    for rank, text in said:
        if used_by_others(text):
            raise _NotJudged(f"rank {rank.rank}: {text}")
    by_itself = [pair for pair in said if not any(text in pair[1] for text in _CONNECTION)]
    rank, text = (by_itself or said)[0]
    how = exit_text(rank.code or 0)
    return f"rank {rank.rank}: {text} ({how})" if text else f"rank {rank.rank}: {how}"
