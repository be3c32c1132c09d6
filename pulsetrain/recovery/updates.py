"""Updates of the program that a job's ranks run: what is in force, what waits, and what is tried. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from pulsetrain.protocol.messages import ProgramUpdate
from pulsetrain.recovery.memory import RestartMemory, UpdateMemory
from pulsetrain.recovery.update_request import UpdateRequest

End = Literal["in_force", "rolled_back", "cancelled"]


@dataclass(frozen=True, kw_only=True)
class PendingUpdate:
    """An update that no attempt was launched with. It stops the job at `until_ns`, if nothing else did.

    `now`: a person wants it with the next saved step, whatever that costs.
    """

    program: ProgramUpdate
    reason: str
    actor: str
    asked_ns: int
    until_ns: int
    now: bool = False

    def merged(self, later: PendingUpdate) -> PendingUpdate:
        """Both as one. The later one was built on this one. The earlier of both times holds."""
        return PendingUpdate(
            program=later.program,
            reason=f"{self.reason}; {later.reason}",
            actor=later.actor,
            asked_ns=self.asked_ns,
            until_ns=min(self.until_ns, later.until_ns),
            now=self.now or later.now,
        )


@dataclass(kw_only=True)
class Trial:
    """An update with which attempts were launched, and which is not good yet.

    `base_step` is the step from which the newest attempt went on, -1 for none. `launches` counts attempts,
    `failures` says why those ended that failed. `judged` is the newest attempt that was looked at after its
    end. `restarts` is what counted against the job before.
    """

    update: PendingUpdate
    restarts: RestartMemory
    base_step: int = -1
    launches: int = 0
    judged: int = -1
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class UpdateOutcome:
    """How the newest update that is decided has ended, and why."""

    number: int
    end: End
    why: str
    at_ns: int


@dataclass(kw_only=True)
class Updates:
    """The updates of one job. `in_force` is good, `before` is what was good before it.

    `number` is that of the newest update. `recalled`: an earlier hub has kept this. `own_step` is the newest
    step that the script had saved by itself when the job was last looked at, None before that. `own_saved_at`
    is the step of the job when a new one was seen, None once it went on from there. `why_waits` says why an
    update that is due does not stop the job.
    """

    number: int = 0
    in_force: ProgramUpdate = field(default_factory=ProgramUpdate)
    before: ProgramUpdate | None = None
    pending: PendingUpdate | None = None
    trial: Trial | None = None
    outcome: UpdateOutcome | None = None
    recalled: bool = False
    own_step: int | None = None
    own_saved_at: int | None = None
    why_waits: str = ""

    @property
    def changes_program(self) -> bool:
        """Whether the next attempt may run another program than the one before.

        Whether an update that is tried is rolled back is decided only after its ranks have stopped.
        """
        return self.pending is not None or self.trial is not None

    def copy(self) -> Updates:
        """The same at this moment."""
        trial = self.trial
        return replace(self, trial=replace(trial, failures=list(trial.failures)) if trial else None)

    @property
    def program(self) -> ProgramUpdate:
        """What the next attempt is launched with, if nothing waits."""
        return self.trial.update.program if self.trial is not None else self.in_force

    def ask(self, request: UpdateRequest, now_ns: int, within_s: float) -> PendingUpdate:
        """Note what a person wants. What waits already is merged with it. Returns what waits now.

        "revert" goes back to `before`, which must be there.
        """
        self.number += 1
        asked = self.would_wait(request, self.number, now_ns, within_s)
        self.pending = self.pending.merged(asked) if self.pending is not None else asked
        self.own_step = self.own_saved_at = None
        return self.pending

    def would_wait(self, request: UpdateRequest, number: int, now_ns: int, within_s: float) -> PendingUpdate:
        """What this request alone would let wait."""
        wait_s = within_s if request.within_s is None else request.within_s
        return PendingUpdate(
            program=self._changed(request, number),
            reason=request.reason,
            actor=request.actor,
            asked_ns=now_ns,
            until_ns=now_ns + int(wait_s * 1e9),
            now=wait_s == 0,
        )

    def _changed(self, request: UpdateRequest, number: int) -> ProgramUpdate:
        if request.what == "revert" and self.before is not None:
            argv, environment = self.before.argv, self.before.environment
            return ProgramUpdate(number=number, argv=argv, environment=environment)
        base = self.pending.program if self.pending is not None else self.in_force
        return ProgramUpdate(
            number=number,
            argv=tuple(request.argv) or base.argv,
            environment={**base.environment, **request.environment},
        )

    def ended(self, end: End, update: PendingUpdate, why: str, now_ns: int) -> None:
        """`update` is decided."""
        self.outcome = UpdateOutcome(number=update.program.number, end=end, why=why, at_ns=now_ns)
        self.pending, self.trial = (None if end == "cancelled" else self.pending), None
        if end == "in_force":
            self.before, self.in_force = self.in_force, update.program

    def kept(self) -> UpdateMemory:
        """What a new hub must know."""
        return UpdateMemory(
            number=self.number,
            in_force=asdict(self.in_force),
            before=_kept(self.before),
            pending=_kept(self.pending),
            trial=_kept(self.trial),
            outcome=_kept(self.outcome),
        )

    @classmethod
    def of_memory(cls, memory: UpdateMemory) -> Updates:
        """The same in a new hub. Raises `LookupError`, `TypeError` or `ValueError` for what none has kept."""
        pending, trial, outcome = memory.pending, memory.trial, memory.outcome
        return cls(
            number=memory.number,
            in_force=_program(memory.in_force),
            before=_program(memory.before) if memory.before is not None else None,
            pending=_pending(pending) if pending is not None else None,
            trial=_trial(trial) if trial is not None else None,
            outcome=UpdateOutcome(**_fields(outcome)) if outcome is not None else None,
            recalled=True,
        )


def shown(program: ProgramUpdate) -> dict[str, object]:
    """What events and status show of a program. Of variables only the names: values may be secret.

    >>> shown(ProgramUpdate(number=2, argv=("train.py",), environment={"TOKEN": "x"}))
    {'number': 2, 'argv': ['train.py'], 'environment': ['TOKEN']}
    """
    return {"number": program.number, "argv": list(program.argv), "environment": sorted(program.environment)}


def row(updates: Updates) -> dict[str, object] | None:
    """The newest update as status shows it, None where there was none.

    `state` is "waiting", "trying", or how it ended. `until_ns` is when it stops the job, 0 where it waits no
    more. `why` says why it ended so, or why one that is due does not stop the job. `in_force` is what is
    launched where nothing waits or is tried.
    """
    if not updates.number:
        return None
    trial, waiting, outcome = updates.trial, updates.pending, updates.outcome
    update = waiting or (trial.update if trial is not None else None)
    state = "waiting" if waiting else "trying" if trial else outcome.end if outcome is not None else "waiting"
    return {
        "number": update.program.number if update else outcome.number if outcome else updates.number,
        "argv": list(update.program.argv) if update else [],
        "environment": sorted(update.program.environment) if update else [],
        "state": state,
        "reason": update.reason if update else "",
        "actor": update.actor if update else "",
        "asked_ns": update.asked_ns if update else 0,
        "until_ns": waiting.until_ns if waiting else 0,
        "failed_attempts": list(trial.failures) if trial else [],
        "why": outcome.why
        if outcome is not None and update is None
        else updates.why_waits
        if waiting
        else "",
        "in_force": shown(updates.in_force),
        "last": asdict(outcome) if outcome is not None else None,
    }


def _kept(value: Any) -> Mapping[str, object] | None:
    return asdict(value) if value is not None else None


def _fields(kept: Mapping[str, object]) -> dict[str, Any]:
    return dict(kept)


def _program(kept: Mapping[str, object]) -> ProgramUpdate:
    fields = _fields(kept)
    argv, environment = _texts(fields["argv"]), dict(fields["environment"])
    _texts([*environment, *environment.values()])
    return ProgramUpdate(number=int(fields["number"]), argv=argv, environment=environment)


def _texts(values: Sequence[object]) -> tuple[str, ...]:
    if isinstance(values, str) or not all(isinstance(value, str) for value in values):
        raise TypeError("an argument or a variable that is no text")
    return tuple(map(str, values))


def _pending(kept: Mapping[str, object]) -> PendingUpdate:
    fields = _fields(kept)
    return PendingUpdate(**{**fields, "program": _program(fields["program"])})


def _trial(kept: Mapping[str, object]) -> Trial:
    fields = _fields(kept)
    restarts = RestartMemory(**fields["restarts"])
    return Trial(**{**fields, "update": _pending(fields["update"]), "restarts": restarts})
