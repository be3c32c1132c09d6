"""Whether the hub answers: its status, asked for once a second by a thread of its own.

No page waits for a hub that is frozen. A page reads the last status and its age, and other questions end as
soon as the hub counts as away.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pulsetrain.core.errors import PulsetrainError, Unavailable
from pulsetrain.core.json import JsonObject

AWAY_S = 5.0
"""A hub that has not answered for so long is away: pages say so, and nobody waits for it."""
_PERIOD_S = 1.0
_FIRST_S = 3.0  # a page waits so long for the first answer of all
_IDLE_S = 30.0  # the thread ends when nobody has asked for so long


def _in_thread(run: Callable[[], None]) -> None:
    threading.Thread(target=run, name="pulse", daemon=True).start()


class Pulse:
    """The newest status. Safe for many threads. `clock` is monotonic seconds."""

    def __init__(
        self,
        ask: Callable[[], JsonObject],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        start: Callable[[Callable[[], None]], None] = _in_thread,
    ) -> None:
        self._ask, self._clock, self._sleep, self._start = ask, clock, sleep, start
        self._changed = threading.Condition()
        self._status: JsonObject | None = None
        self._error: PulsetrainError | None = None
        self._answered_s = self._began_s = self._wanted_s = clock()
        self._beating = False

    def status(self) -> JsonObject:
        """The last status, however old. Raises why there has never been one."""
        self._want()
        with self._changed:
            self._changed.wait_for(self._is_known, timeout=self._patience_s())
            if self._status is not None:
                return self._status
            raise self._error or Unavailable("the hub does not answer")

    @property
    def age_s(self) -> float:
        """How old the status is. Without one: time since the hub was first asked.

        It goes on while nobody reads: a status from before a pause is as old as it is.
        """
        return self._clock() - (self._began_s if self._status is None else self._answered_s)

    @property
    def _unanswered_s(self) -> float:
        """Time without an answer, of that in which the hub was asked."""
        return self._clock() - max(self._answered_s, self._began_s)

    @property
    def away(self) -> str:
        """Why the hub counts as away. "" while it answers."""
        if not self._beating or self._unanswered_s < AWAY_S:
            return ""
        reason = str(self._error) if self._error else "The hub does not answer"
        return f"{reason[:1].upper()}{reason[1:]}, for {self._unanswered_s:.0f} s now"

    def turn(self) -> None:
        """Ask once."""
        try:
            status = self._ask()
        except PulsetrainError as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()
            return
        with self._changed:
            self._status, self._error, self._answered_s = status, None, self._clock()
            self._changed.notify_all()

    def forget(self) -> None:
        """Have the next reader wait for a new answer, after an action that changed something."""
        with self._changed:
            self._answered_s = min(self._answered_s, self._clock() - _PERIOD_S)

    def _want(self) -> None:
        with self._changed:
            self._wanted_s = self._clock()
            if self._beating:
                return
            self._beating, self._began_s, self._error = True, self._clock(), None
        self._start(self._beat)

    def _beat(self) -> None:
        while True:
            self.turn()
            with self._changed:
                if self._clock() - self._wanted_s > _IDLE_S:
                    self._beating = False
                    return
            self._sleep(_PERIOD_S)

    def _is_known(self) -> bool:
        """Whether this thread has an answer of its own time, or knows that there is none."""
        return self._answered_s >= self._began_s or self._error is not None

    def _patience_s(self) -> float:
        return max(0.0, self._began_s + _FIRST_S - self._clock())
