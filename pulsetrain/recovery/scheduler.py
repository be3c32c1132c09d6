"""Who owns the machines: Slurm, Kubernetes, or nobody who could be asked. Interface and configuration."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import structlog

from pulsetrain.core.errors import PulsetrainError, Unavailable

log = structlog.get_logger()

NONE, SLURM, KUBERNETES = "none", "slurm", "kubernetes"
KINDS = (NONE, SLURM, KUBERNETES)


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """The scheduler of the cluster: table ``[scheduler]``, environment ``PULSETRAIN_SCHEDULER_*``."""

    kind: str = NONE
    """Who owns the machines: none, slurm or kubernetes. A node that is evicted for a fault of its machine is
    drained there, and a replacement is submitted where a job lacks a node. With kubernetes the node is
    cordoned, pods of the job there are evicted, and the replacement is a pod of the PulsetrainJob's
    template."""
    template: str = ""
    """Slurm: batch script of a replacement, which runs `pulsetrain agent --standby`. Empty: there is none.

    It finds the job in PULSETRAIN_REPLACEMENT_JOB and its number of nodes in
    PULSETRAIN_REPLACEMENT_NNODES."""
    standbys: int = 0
    """How many standbys to have after a recovery. 0: a replacement is submitted only where the job waits for
    a node."""
    replacements_per_hour: int = 4
    """Replacements that are submitted for a job in any hour."""
    patience_s: float = 3600.0
    """A replacement that has not joined after this time is given up, and another one may be submitted."""
    retry_s: float = 60.0
    """How long to wait after a replacement could not be submitted, or one got no answer."""
    timeout_s: float = 20.0
    """How long one command of the scheduler may take. An eviction that a PodDisruptionBudget refuses is tried
    again for so long."""
    scontrol: str = "scontrol"
    """Program that drains nodes. Words may precede it, as in `sudo -n scontrol`: Slurm lets only operators
    drain."""
    sbatch: str = "sbatch"
    """Program that submits replacements. Words may follow it, as in `sbatch --partition gpu`."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind = {self.kind!r}: allowed {', '.join(KINDS)}")
        for name in ("standbys", "replacements_per_hour", "patience_s", "retry_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} = {getattr(self, name)}: allowed 0 or more")
        if self.timeout_s <= 0:
            raise ValueError(f"timeout_s = {self.timeout_s}: allowed above 0")
        for name in ("scontrol", "sbatch"):
            if not getattr(self, name).strip():
                raise ValueError(f"{name} is empty: allowed: a program, with its options")


@dataclass(frozen=True, kw_only=True)
class NodeRequest:
    """One more node for a job of `nnodes`, and not one of `exclude`. It cannot run on fewer than `least`.

    No other request of the job has its `number`. `again`: it was asked for before, and maybe it was taken.
    """

    job: str
    nnodes: int
    least: int
    exclude: tuple[str, ...] = ()
    number: int = 0
    again: bool = False

    @property
    def flag(self) -> str:
        """The job's ``--nnodes``. An agent that says another one is refused.

        >>> NodeRequest(job="j", nnodes=4, least=2).flag
        '2:4'
        """
        return f"{self.least}:{self.nnodes}" if self.least < self.nnodes else str(self.nnodes)


class Unanswered(Unavailable):
    """It is not known whether the scheduler has done what was asked."""


class Scheduler(Protocol):
    """Who owns the machines. The methods block, and return one line that says what was done.

    They raise a `PulsetrainError` of one line where it could not be done.
    """

    @property
    def name(self) -> str:
        """As people call it, "" for none."""
        ...

    def drain(self, node: str, reason: str, *, job: str) -> str:
        """Nothing new may be started on this node, and `job` leaves it. Other jobs there go on.

        What somebody else has drained stays as it is.
        """
        ...

    def give_back(self, node: str) -> str:
        """Jobs may run there again, if `drain` has drained it."""
        ...

    def replace(self, request: NodeRequest) -> str:
        """Ask for one more node. Its agent joins the job as a standby when the scheduler has one.

        What is asked for twice under one number is one node. Raises `Unanswered` where it may be taken.
        """
        ...


class NoScheduler:
    """Nobody to ask: nodes come and go by hand."""

    name = ""

    def drain(self, node: str, reason: str, *, job: str) -> str:
        """See `Scheduler.drain`."""
        return "no scheduler"

    def give_back(self, node: str) -> str:
        """See `Scheduler.give_back`."""
        return "no scheduler"

    def replace(self, request: NodeRequest) -> str:
        """See `Scheduler.replace`."""
        return "no scheduler"


class What(StrEnum):
    """What a scheduler is asked for."""

    DRAIN = "drain"
    GIVE_BACK = "give_back"
    REPLACE = "replace"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the scheduler said. `error` is one line, "" where it was done, also if it `may_be_done`."""

    said: str = ""
    error: str = ""
    may_be_done: bool = False


OnThread = Callable[[Callable[[], str]], Awaitable[str]]
"""Runs what blocks where nobody waits for it."""


class SchedulerRequests:
    """Puts requests to the scheduler on threads and counts them by what was asked and whether it was done."""

    def __init__(
        self,
        scheduler: Scheduler | None = None,
        config: SchedulerConfig | None = None,
        on_thread: OnThread = asyncio.to_thread,
    ) -> None:
        self.scheduler, self.config = scheduler or NoScheduler(), config or SchedulerConfig()
        self._on_thread = on_thread
        self.counts: Counter[tuple[What, bool]] = Counter()

    @property
    def replaces(self) -> bool:
        """Whether replacements can be asked for."""
        return bool(self.scheduler.name and (self.config.template or self.config.kind == KUBERNETES))

    async def ask(self, what: What, call: Callable[[], str]) -> Answer:
        """Run `call` on a thread. An error is counted, logged and told in the answer."""
        try:
            said = await self._on_thread(call)
        except PulsetrainError as error:
            self.counts[what, False] += 1
            log.warning("scheduler_failed", what=str(what), error=str(error))
            return Answer(error=str(error), may_be_done=isinstance(error, Unanswered))
        self.counts[what, True] += 1
        return Answer(said=said)
