"""Commands of a hub that may have lost the lead wait until it has shown that it leads.

The hub asks the store of the election after the agent has asked the hub. So a command that comes late, from a
hub that stood still or was cut off, is never carried out, whatever the clocks of the machines say.
"""

from __future__ import annotations

from pulsetrain.core.clock import Clock
from pulsetrain.protocol.messages import (
    UNCONFIRMED,
    Command,
    Confirm,
    Confirmed,
    DumpStacks,
    Ping,
    ReadRas,
    Reply,
)

ANSWER_S = 5.0
"""Longer than a lease: a hub that cannot ask the store for so long leads no more."""
HARMLESS = (Ping, DumpStacks, ReadRas)


class LeadCheck:
    """The commands of one connection that wait. `node` is who the agent has said it is."""

    def __init__(self, clock: Clock) -> None:
        self.node = ""
        self._clock = clock
        self._waiting: dict[int, tuple[Command, float]] = {}

    def hold(self, command: Command) -> Confirm | None:
        """What to ask the hub before `command` is carried out, None where it may be at once."""
        if isinstance(command, HARMLESS):
            return None
        self._waiting[command.id] = command, self._clock.monotonic_s()
        return Confirm(id=command.id, node=self.node)

    def confirmed(self, answer: Confirmed) -> Command | Reply | None:
        """The command to carry out, or the reply that refuses it. None: nothing waits for this answer."""
        command, asked_s = self._waiting.pop(answer.id, (None, 0.0))
        if command is None:
            return None
        in_time = self._clock.monotonic_s() - asked_s < answer.leads_s
        return command if in_time else self._refusal(command.id)

    def give_up(self, command: int) -> Reply | None:
        """The reply that refuses a command whose answer did not come, None where it came."""
        return self._refusal(command) if self._waiting.pop(command, None) else None

    def _refusal(self, command: int) -> Reply:
        return Reply(id=command, node=self.node, error=UNCONFIRMED)
