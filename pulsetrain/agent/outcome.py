"""What `pulsetrain run` says at the end, and with which status it ends."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from pulsetrain.core.errors import UsageError
from pulsetrain.protocol.messages import RankExit

SHOWN_LINES = 12
USAGE_EXIT = 2


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the agent's life ended. `culprit` is the local rank that failed first, if one did.

    `persist`: the job did not finish, and its memory is about to be lost. `signal` is the one that tells
    ranks to end, 0: they are not told.
    """

    exit_code: int
    reason: str
    culprit: RankExit | None = None
    persist: bool = False
    signal: int = 0


def culprit(exits: Sequence[RankExit]) -> RankExit | None:
    """The first that failed, in order of time. Of usage errors, the first that prints a reason.

    Later ranks fail because of the first, and may print more than it: a killed rank prints nothing.
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
    """One paragraph: why it ended, and the last lines of this node's rank that failed.

    Raises `UsageError` where the ranks ended with status 2, with the line that one of them printed.
    """
    culprit = outcome.culprit
    if outcome.exit_code == USAGE_EXIT:
        explained = culprit is not None and culprit.code == USAGE_EXIT and culprit.last_lines
        raise UsageError(culprit.last_lines[-1] if culprit is not None and explained else outcome.reason)
    if outcome.exit_code == 0 or culprit is None:
        return outcome.reason
    lines = [f"  | {line}" for line in culprit.last_lines[-SHOWN_LINES:]]
    said = ["it last said:", *lines] if lines else ["it said nothing on standard error"]
    who = f"rank {culprit.rank} on {culprit.node} (pid {culprit.pid})"
    return "\n".join([outcome.reason, f"{who} {_describe_exit(culprit.code)}; {said[0]}", *said[1:]])


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


class OutcomeReport(TypedDict):
    """What `pulsetrain run --json` prints."""

    exit_code: int
    reason: str
    rank: int
    node: str
    code: int
    last_lines: list[str]


def report(outcome: Outcome) -> OutcomeReport:
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
