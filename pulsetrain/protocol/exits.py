"""What a rank's exit code and its last lines say, in words."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

_EXCEPTION = re.compile(r"(\w+\.)*\w*(Error|Exception|Interrupt|Exit)\b")
_LONGEST = 300  # characters of a line that are told


def exit_text(code: int) -> str:
    """Return an exit code as text. A negative code is a signal.

    >>> exit_text(-9), exit_text(1)
    ('SIGKILL', 'exit status 1')
    """
    if code >= 0:
        return f"exit status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def last_error(lines: Sequence[str]) -> str:
    """Return the last line that looks like an exception, else the last line that is not empty.

    Frameworks print hints behind a traceback. They say less than the exception.

    >>> last_error(["ValueError: no such file", "Set the variable FULL_ERROR=1 for more."])
    'ValueError: no such file'
    """
    filled = [line.strip() for line in lines if line.strip()]
    errors = [line for line in filled if _EXCEPTION.match(line)]
    return (errors or filled or [""])[-1][:_LONGEST]
