"""Ranks that replay a part of training for a check. They are no attempt of the job. Nothing watches them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

from pulsetrain.agent.output import last_lines, open_log
from pulsetrain.agent.processes.rank import LAST_LINES, NodeIdentity, Program, torchrun_environment
from pulsetrain.agent.processes.zygote import OnExit
from pulsetrain.agent.processes.zygote_protocol import RankProcess
from pulsetrain.core.errors import Unavailable
from pulsetrain.core.json import JsonObject
from pulsetrain.protocol.exits import exit_text, last_error
from pulsetrain.protocol.messages import ReplayCheck, ranks_of_node

OWN = "pulsetrain.diagnostics.replay"
REPLAY = "PULSETRAIN_REPLAY"
"""is 1 for a script that replays"""
END_S = 5.0
FAILED_TOGETHER_S = 1.0
"""for other ranks of the node that fail as well: the first one may only have lost its connection to them"""
_CONNECTION = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")


class Forks(Protocol):
    """Forks ranks, and sends signals to them."""

    def spawn(self, rank: RankProcess, on_exit: OnExit) -> int: ...
    def signal(self, pid: int, signum: int) -> None: ...


@dataclass(kw_only=True)
class _Rank:
    rank: int
    log: Path
    pid: int = -1
    code: int | None = None


class ReplayRanks:
    """The ranks of this node that replay, one replay at a time. Thread-safe.

    They run `command`, None for the project's own training. Their output goes to `log_dir`.
    """

    def __init__(self, command: Program | None = None, log_dir: Path = Path()) -> None:
        self._command, self._log_dir = command, log_dir
        self._turn, self._changed = threading.Lock(), threading.Condition()
        self._ranks: list[_Rank] = []
        self._ended_by_hub = False

    @property
    def kind(self) -> Literal["own", "command"]:
        """What is trained."""
        return "command" if self._command else "own"

    def run(self, zygote: Forks, identity: NodeIdentity, check: ReplayCheck) -> JsonObject:
        """Run this node's part. See `ReplayCheck` for what is returned."""
        self.end(zygote)
        if check.timeout_s <= 0:
            return {}
        with self._turn:
            began_s = time.monotonic()
            try:
                self._spawn(zygote, identity, check)
                error = self._outcome(began_s + check.timeout_s, check.timeout_s)
            except Unavailable as failure:
                error = str(failure)
            finally:
                self._kill(zygote)
            log = str(self._ranks[0].log.parent) if self._ranks else ""
            return {"ok": not error, "error": error, "seconds": time.monotonic() - began_s, "log": log}

    def end(self, zygote: Forks) -> None:
        """End the replay that runs. Returns once its ranks have ended, or do not end."""
        with self._changed:
            self._ended_by_hub = True
            self._changed.notify_all()
        with self._turn:
            self._ended_by_hub = False

    def _spawn(self, zygote: Forks, identity: NodeIdentity, check: ReplayCheck) -> None:
        own = ranks_of_node(check.members.index(identity.node), identity.nproc_per_node)
        folder = self._log_dir / f"replay_{check.number}"
        folder.mkdir(parents=True, exist_ok=True)
        self._ranks = [_Rank(rank=rank, log=folder / f"rank_{rank}.log") for rank in own]
        for rank in self._ranks:
            self._fork(zygote, identity, check, rank)

    def _fork(self, zygote: Forks, identity: NodeIdentity, check: ReplayCheck, rank: _Rank) -> None:
        program = self._command if check.command and self._command else _own(check.seconds, rank.log.parent)
        nproc, store = identity.nproc_per_node, (check.store_address, check.store_port)
        environment = {
            **torchrun_environment(rank.rank, len(check.members) * nproc, nproc, store),
            "ROLE_NAME": program.role,
            "TORCHELASTIC_RUN_ID": f"{identity.job}-replay",
            "TORCHELASTIC_RESTART_COUNT": str(check.number),
            "TORCHELASTIC_MAX_RESTARTS": "0",
            REPLAY: "1",
        }
        output = open_log(rank.log)
        try:
            process = RankProcess(
                argv=program.argv,
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

    def _outcome(self, end_s: float, timeout_s: float) -> str:
        """Wait. Why the replay failed on this node, "" where it did not."""
        with self._changed:
            while not self._ended_by_hub:
                if any(rank.code for rank in self._ranks):
                    self._changed.wait_for(self._all_ended, FAILED_TOGETHER_S)
                    return _error(self._ranks)
                if self._all_ended():
                    return ""
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    return f"it did not end in {timeout_s:g} s"
                self._changed.wait(left_s)
        return "ended by the hub"

    def _all_ended(self) -> bool:
        return self._ended_by_hub or all(rank.code is not None for rank in self._ranks)

    def _kill(self, zygote: Forks) -> None:
        for rank in self._ranks:
            if rank.code is None and rank.pid > 0:
                zygote.signal(rank.pid, signal.SIGKILL)
        with self._changed:
            self._changed.wait_for(lambda: all(r.code is not None for r in self._ranks if r.pid > 0), END_S)


def _own(seconds: float, folder: Path) -> Program:
    """It runs in a folder without modules: one of the user's must not take the place of one of ours."""
    return Program(argv=(OWN, "--seconds", f"{seconds:g}"), mode="module", cwd=folder)


def _error(ranks: Sequence[_Rank]) -> str:
    """What a rank said that failed, rather by itself than because another one had ended."""
    said = [(rank, last_error(last_lines(rank.log, LAST_LINES))) for rank in ranks if rank.code]
    by_itself = [pair for pair in said if not any(text in pair[1] for text in _CONNECTION)]
    rank, text = (by_itself or said)[0]
    how = exit_text(rank.code or 0)
    return f"rank {rank.rank}: {text} ({how})" if text else f"rank {rank.rank}: {how}"
