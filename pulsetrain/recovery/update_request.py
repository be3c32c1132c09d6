"""What a person asks for about the program that a job's ranks run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from pulsetrain.core.errors import UsageError

What = Literal["apply", "revert", "cancel"]
WHATS: tuple[str, ...] = get_args(What)
LONGEST_S = 30 * 86400.0
MOST_BYTES = 1 << 15  # of all arguments and variables: they are kept in a store of 1 MiB
MOST_ARGUMENTS = 1000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_OURS = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
)
_OUR_PREFIXES = ("TORCHELASTIC_", "PULSETRAIN_")


@dataclass(frozen=True, kw_only=True)
class UpdateRequest:
    """`argv` takes the place of script and arguments, unless it is empty. `environment` is added.

    The update waits for `within_s` seconds at most until it stops the job. 0: at the next saved step, None:
    as long as the policy says. Raises `UsageError` for other values. No message has the value of one.
    """

    what: str
    reason: str
    actor: str
    argv: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    within_s: float | None = None

    def __post_init__(self) -> None:
        if self.what not in WHATS:
            raise UsageError(f"what = {self.what!r}: allowed: {', '.join(WHATS)}")
        if self.what != "apply" and (self.argv or self.environment):
            raise UsageError(f"{self.what} takes no program and no variables")
        if self.what == "cancel" and self.within_s is not None:
            raise UsageError("cancel takes no time")
        if self.within_s is not None and not 0 <= self.within_s <= LONGEST_S:
            raise UsageError(f"within_s = {self.within_s}: allowed: 0 to {LONGEST_S:.0f}")
        _check_arguments(self.argv)
        for name, value in self.environment.items():
            _check_variable(name, value)
        size = sum(len(text.encode()) for text in (*self.argv, *self.environment, *self.environment.values()))
        if size > MOST_BYTES:
            raise UsageError(f"arguments and variables of {size} bytes: allowed: {MOST_BYTES}")


def _check_arguments(argv: Sequence[str]) -> None:
    if len(argv) > MOST_ARGUMENTS:
        raise UsageError(f"{len(argv)} arguments: allowed: {MOST_ARGUMENTS}")
    for number, argument in enumerate(argv):
        if not isinstance(argument, str) or not argument.isprintable():
            raise UsageError(f"argument {number}: allowed: printable characters")
    if argv and not argv[0]:
        raise UsageError("argument 0 is empty: it is the script, the module or the program")


def _check_variable(name: str, value: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(f"variable {str(name)[:80]!r}: allowed: letters, digits and _")
    if name in _OURS or name.startswith(_OUR_PREFIXES):
        raise UsageError(f"variable {name}: Pulsetrain sets it itself")
    if not isinstance(value, str) or not value.isprintable():
        raise UsageError(f"the value of variable {name}: allowed: printable characters")
