"""Decides when a named hang may stop the job: at once if it is certain, else late or never.

A hang is named after seconds. To stop a job that only pauses (rank 0 saves, a long evaluation, a debugger)
would cost it more than any hang. So the job is stopped at once only for a hang that cannot end by itself. How
long any other hang must last depends on what the rank at fault does (`condition` in its evidence), and on the
longest pause that this job survived at the same place. A job that has nothing to resume from is never stopped
for it, because a restart would lose everything. A person may say "wait" or "now".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pulsetrain.recovery.back_off import PROGRESS_STEPS
from pulsetrain.recovery.faults import Observation, rank_of
from pulsetrain.recovery.memory import HangMemory

PAUSE_FACTOR = 2  # a hang must last so many times as long as the longest pause that ended by itself
AGAIN_FACTOR = 4  # where a restart led to the same place, the next one must wait so many times as long
REMEMBERED_NS = 86_400 * 10**9  # a restart, unless the job came further before
LOOP_WITHOUT_CHECKPOINT_NS = 300 * 10**9  # a loop loses nothing that a longer look would not lose
HIDDEN_NS = 10 * 10**9  # a hang that nobody sees for so long is none any more, also if the job did not move
LATE_NS = 10 * 10**9  # no look is so long after the one before, unless the hub or its machine stood still
UNPROVEN_NS = 1_800 * 10**9
"""What may be a pause lasts so long, as torch's longest timeout, where a restart may lose everything."""
TIMEOUT_MARGIN_NS = 5 * 10**9  # so that torch, which knows more, raises first
VOLUNTARY = (
    "waits",
    "slow_phase",
    "unknown",
    "spin",
    "device",
)  # conditions that a healthy rank is in for minutes
ALMOST_CERTAIN = ("held_gil", "loop")  # conditions that are certain once they have lasted for some time
NOTHING_TO_RESUME = "The job is not restarted: it has no checkpoint to resume from, and it may only pause."
DECISIONS = ("wait", "now")


@dataclass(frozen=True, kw_only=True)
class PendingHang:
    """A hang that is named and not acted on. `act_at_ns` is None if the job will not be stopped for it.

    `condition` is what the rank does, `place` where in the code it stands, "" where that is unknown.
    """

    rank: int
    since_ns: int
    act_at_ns: int | None
    why: str
    condition: str = ""
    place: str = ""

    def row(self) -> dict[str, object]:
        """Return it as the API shows it."""
        return {
            "rank": self.rank,
            "since_ns": self.since_ns,
            "act_at_ns": self.act_at_ns,
            "action": "tell" if self.act_at_ns is None else "restart",
            "why": self.why,
            "condition": self.condition,
            "place": self.place,
            "decisions": list(DECISIONS),
        }


@dataclass(frozen=True, kw_only=True)
class Hold:
    """A person said that the job is to be left alone."""

    until_ns: int
    actor: str


def is_certain(hang: Observation) -> bool:
    """Return whether the analyzer says that the hang cannot end by itself."""
    return bool(hang.evidence.get("certain"))


def _text(hang: Observation, key: str) -> str:
    return str(hang.evidence.get(key, ""))


def _number(hang: Observation, key: str) -> int:
    value = hang.evidence.get(key, 0)
    return int(value) if isinstance(value, int | float) else 0


def _shows_no_data(hang: Observation) -> bool:
    """Return whether it was seen that a network carries nothing: by its ports, or by what TCP sends again.

    What ranks read and write says nothing of sockets, nor of RDMA.
    """
    return bool(hang.evidence.get("links")) or _number(hang, "traffic_stopped_s") > 0


class HangPatience:
    """What one job knows of its hangs and pauses. The caller gives the time.

    `patience_s` is for a rank of which nothing moves, `pause_s` for one that waits or is in a slow phase.
    """

    def __init__(self, patience_s: float, pause_s: float | None = None) -> None:
        self.pending: PendingHang | None = None
        self._patience_ns = int(patience_s * 1e9)
        self._pause_ns = int(max(patience_s, patience_s if pause_s is None else pause_s) * 1e9)
        self._longest_ns: dict[str, int] = {}
        self._restarts: dict[str, int] = {}
        self._restarted_at: dict[str, tuple[int, int]] = {}  # at which step and when, by place
        self._step = -1
        self._hold: Hold | None = None
        self._worst: Observation | None = None
        self._condition_since_ns = self._seen_ns = self._looked_ns = 0
        self._acted = self._recalled = self._can_resume = self._proven = False

    @property
    def longest_pause_ns(self) -> int:
        """The longest pause that the job survived, wherever."""
        return max(self._longest_ns.values(), default=0)

    def look(
        self,
        hangs: Sequence[Observation],
        now_ns: int,
        *,
        can_resume: bool,
        proven: bool = True,
        quiet_ns: int = 0,
        step: int = -1,
    ) -> Observation | None:
        """Take the hangs that are open now. Returns the one to act on, once, or None.

        `proven`: it is known that a restart goes on from a checkpoint, and not only that there is one.
        `quiet_ns` is the time since some rank of the job made progress. `step` is the newest that one
        completed, -1 for none.
        """
        self._stood_still(now_ns)
        self._came_further(step, now_ns)
        if not hangs:
            self._absent(now_ns, now_ns - quiet_ns)
            return None
        self._seen_ns = now_ns
        if self._acted:
            return None
        worst = max(hangs, key=lambda hang: (is_certain(hang), hang.confidence))
        before, since_ns = self.pending, self.pending.since_ns if self.pending else now_ns
        if before is None or before.condition != _text(worst, "condition"):
            self._condition_since_ns = now_ns
        self._worst, self._can_resume, self._proven = worst, can_resume, proven
        self.pending = self._pending(worst, since_ns, now_ns, can_resume=can_resume)
        act_at_ns = self.pending.act_at_ns
        return None if act_at_ns is None or now_ns < act_at_ns else self._act()

    def _stood_still(self, now_ns: int) -> None:
        """Count no time in which nobody looked: the hub was stopped, or its clock was set. The job may have
        moved meanwhile, and what is open is from before."""
        looked_ns, self._looked_ns = self._looked_ns, now_ns
        gap_ns = now_ns - looked_ns
        if looked_ns and gap_ns > LATE_NS:
            self._condition_since_ns += gap_ns
            if self._hold is not None:
                self._hold = replace(self._hold, until_ns=self._hold.until_ns + gap_ns)
            if self.pending is not None:
                self.pending = replace(self.pending, since_ns=self.pending.since_ns + gap_ns)

    def _came_further(self, step: int, now_ns: int) -> None:
        """Forget the restarts at places that the job has left behind."""
        self._step = step
        for place in list(self._restarts):
            at_step, at_ns = self._restarted_at.setdefault(place, (step, now_ns))
            if step - at_step > PROGRESS_STEPS or now_ns - at_ns > REMEMBERED_NS:
                del self._restarts[place], self._restarted_at[place]

    def wait(self, until_ns: int, actor: str) -> None:
        """A person wants the job to be left alone until then, whatever is found."""
        self._hold, self._recalled = Hold(until_ns=until_ns, actor=actor), False
        if self.pending is not None and self._worst is not None:
            since_ns = self.pending.since_ns
            self.pending = self._pending(self._worst, since_ns, self._looked_ns, can_resume=self._can_resume)

    def now(self) -> Observation | None:
        """A person wants the pending hang to be acted on. Returns it, None where there is none."""
        self._hold = None
        return None if self._worst is None or self._acted else self._act()

    def kept(self) -> HangMemory:
        """What a new hub must know."""
        until_ns, actor = (self._hold.until_ns, self._hold.actor) if self._hold is not None else (0, "")
        return HangMemory(
            hold_until_ns=until_ns,
            actor=actor,
            restarts=dict(self._restarts),
            restarted_at={place: list(at) for place, at in self._restarted_at.items()},
        )

    def recall(self, memory: HangMemory) -> None:
        """Take over what an earlier hub knew."""
        self._restarts, self._recalled = dict(memory.restarts), True
        self._restarted_at = {place: (step, at_ns) for place, (step, at_ns) in memory.restarted_at.items()}
        self._hold = Hold(until_ns=memory.hold_until_ns, actor=memory.actor) if memory.actor else None

    def forget_another_run(self) -> None:
        """What was recalled is of another run of this job's name."""
        if self._recalled:
            self._restarts, self._hold, self._recalled = {}, None, False
            self._restarted_at = {}

    def forget(self) -> None:
        """The job is being stopped: what was open says nothing about the next attempt."""
        self.pending, self._worst, self._acted = None, None, False

    def _act(self) -> Observation | None:
        hang = self._worst
        if hang is not None:
            place = _text(hang, "place")
            self._restarts[place] = self._restarts.get(place, 0) + 1
            self._restarted_at[place] = self._step, self._looked_ns
        self.forget()
        self._acted = True
        return hang

    def _pending(self, hang: Observation, since_ns: int, now_ns: int, *, can_resume: bool) -> PendingHang:
        act_at_ns, why = self._decision(hang, since_ns, now_ns, can_resume=can_resume)
        hold = self._hold
        if hold is not None and now_ns < hold.until_ns:
            act_at_ns = None if act_at_ns is None else max(act_at_ns, hold.until_ns)
            then = "" if act_at_ns is None else " Then the job is restarted."
            why = f"{hold.actor} said to wait.{then}"
        return PendingHang(
            rank=rank_of(hang),
            since_ns=since_ns,
            act_at_ns=act_at_ns,
            why=why,
            condition=_text(hang, "condition"),
            place=_text(hang, "place"),
        )

    def _decision(
        self, hang: Observation, since_ns: int, now_ns: int, *, can_resume: bool
    ) -> tuple[int | None, str]:
        """Return when to act, None for never, and why then."""
        condition = _text(hang, "condition")
        if is_certain(hang):
            if condition not in ALMOST_CERTAIN:
                return since_ns, "It cannot end by itself. The job is restarted."
            least_ns = LOOP_WITHOUT_CHECKPOINT_NS if condition == "loop" and not can_resume else 0
            wait_ns = self._again(hang, max(least_ns, PAUSE_FACTOR * self._survived_ns(hang)))
            return since_ns + wait_ns, "It cannot end by itself. The job is restarted."
        if not can_resume and condition in ALMOST_CERTAIN:
            return None, "It is watched whether that goes on. Then the job is restarted."
        if not can_resume:
            return None, NOTHING_TO_RESUME
        looked_at_ns = _number(
            hang, "looked_at_ns"
        )  # what is named sooner than others is not acted on sooner
        wait_ns = self._again(hang, self._wait_ns(hang)) + looked_at_ns
        act_at_ns = self._condition_since_ns + wait_ns
        left_ns = _number(hang, "timeout_ns") - _number(hang, "stall_ns") + TIMEOUT_MARGIN_NS
        if _number(hang, "timeout_ns") and now_ns + left_ns < act_at_ns:
            why = "The job may only pause. Its own timeout ends it then, unless it moves."
            return max(now_ns + max(left_ns, 0), self._condition_since_ns + looked_at_ns), why
        why = f"The job may only pause. It is restarted if it does not move within {wait_ns / 1e9:.0f} s."
        return act_at_ns, why

    def _wait_ns(self, hang: Observation) -> int:
        """Return how long a hang must last that may be a pause."""
        condition, timeout_ns = _text(hang, "condition"), _number(hang, "timeout_ns")
        pauses = condition in VOLUNTARY or (condition == "network" and not _shows_no_data(hang))
        pauses = pauses or bool(hang.evidence.get("starting"))  # it is named early, and waited for as ever
        base_ns = self._pause_ns if pauses else self._patience_ns
        if pauses and (hang.evidence.get("timeout_chosen") or not self._proven):
            base_ns = max(base_ns, timeout_ns)
        if pauses and not self._proven:
            base_ns = max(base_ns, UNPROVEN_NS)
        return max(base_ns, PAUSE_FACTOR * self._survived_ns(hang))

    def _survived_ns(self, hang: Observation) -> int:
        """Return the longest pause at this place that ended by itself."""
        return max(self._longest_ns.get(_text(hang, "place"), 0), _number(hang, "usual_ns"))

    def _again(self, hang: Observation, wait_ns: int) -> int:
        """Return a longer wait where restarts led the job to the same place again."""
        restarts = self._restarts.get(_text(hang, "place"), 0)
        return max(wait_ns, self._patience_ns) * AGAIN_FACTOR**restarts if restarts else wait_ns

    def _absent(self, now_ns: int, moved_ns: int) -> None:
        """No hang is seen. It is over where the job moved at `moved_ns`, and then it was a pause.

        Where nothing moved it may only be hidden: a report is late, or the rank woke for a moment.
        """
        pending = self.pending
        if pending is None:
            self.forget()
        elif moved_ns > pending.since_ns:
            paused_ns = now_ns - pending.since_ns
            self._longest_ns[pending.place] = max(self._longest_ns.get(pending.place, 0), paused_ns)
            self.forget()
        elif now_ns - self._seen_ns > HIDDEN_NS:
            self.forget()
