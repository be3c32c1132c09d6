"""What `pulsetrain run` says at the end, and with which status it ends."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pulsetrain.core.errors import UsageError
from pulsetrain.protocol.messages import RankExit

SHOWN_LINES = 12
USAGE_EXIT = 2


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the agent's life ended. `culprit` is the local rank that failed first, if one did."""

    exit_code: int
    reason: str
    culprit: RankExit | None = None


def culprit(exits: Sequence[RankExit]) -> RankExit | None:
    """The first that failed, in order of time; of usage errors, the first that says what is wrong.

    Ranks after the first fail because of it, and say more: a killed rank says nothing.
    """
    failed = [e for e in exits if e.code != 0]
    usage = [e for e in failed if e.code == USAGE_EXIT and e.last_lines]
    first = next(iter(failed), None)
    return usage[0] if usage and first is not None and first.code == USAGE_EXIT else first


def exit_status(outcome: Outcome) -> int:
    """0 for a finished job, else the culprit's exit code as a shell has it (128 + signal), at least 1."""
    code = outcome.exit_code
    return 128 - code if code < 0 else min(code, 255)


def summary(outcome: Outcome) -> str:
    """One paragraph: why it ended, and the last lines of this node's rank that failed. Raises `UsageError`
    with a rank's own line where the ranks ended with status 2."""
    culprit = outcome.culprit
    if outcome.exit_code == USAGE_EXIT:
        said = culprit is not None and culprit.code == USAGE_EXIT and culprit.last_lines
        raise UsageError(culprit.last_lines[-1] if culprit is not None and said else outcome.reason)
    if outcome.exit_code == 0 or culprit is None:
        return outcome.reason
    lines = "\n".join(f"  | {line}" for line in culprit.last_lines[-SHOWN_LINES:])
    who = f"rank {culprit.rank} on {culprit.node} (pid {culprit.pid})"
    return f"{outcome.reason}\n{who} {_how(culprit.code)}; it last said:\n{lines}"


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def report(outcome: Outcome) -> dict[str, Any]:
    """The outcome for programs; `rank` is -1 where none of this node's failed."""
    culprit = outcome.culprit
    return {
        "exit_code": exit_status(outcome),
        "reason": outcome.reason,
        "rank": culprit.rank if culprit else -1,
        "node": culprit.node if culprit else "",
        "code": culprit.code if culprit else 0,
        "last_lines": list(culprit.last_lines) if culprit else [],
    }
