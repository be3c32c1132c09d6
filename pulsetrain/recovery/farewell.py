"""What `pulsetrain run` says at the end, and with which status it ends."""

from __future__ import annotations

import signal
from typing import Any

from pulsetrain.recovery.agent import USAGE_EXIT, Outcome
from pulsetrain.stream.errors import UsageError

SHOWN_LINES = 12


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
