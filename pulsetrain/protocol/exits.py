"""What a rank's exit code and its last lines say, in words."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from itertools import dropwhile
from pathlib import PurePosixPath

_EXCEPTION = re.compile(r"(\w+\.)*\w*(Error|Exception|Interrupt|Exit)\b")
_THROWN = re.compile(r"what\(\):\s*(.+)")  # the text of a C++ exception that ended the process
_FATAL = re.compile(r"Fatal Python error: ")  # faulthandler's first line, its stacks follow
_FRAME = re.compile(r'File "(.+)", line (\d+) in (.+)')
_OF_A_DUMP = re.compile(r"(Extension modules: |(Current thread|Thread) 0x|File \"|<no Python frame>|\.\.\.$)")
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


def last_error(lines: Sequence[str], code: int = 1) -> str:
    """Return the last line that looks like an exception, else the last line that is not empty.

    `code` is the exit code. A process that is killed says nothing of it. So no other line than an exception
    is told then: it may be a progress bar.

    Frameworks print hints behind a traceback. They say less than the exception. After a fatal signal the
    lines end with a dump of all threads: its first line is told with where the process was, or the C++
    exception before it.

    >>> last_error(["ValueError: no such file", "Set the variable FULL_ERROR=1 for more."])
    'ValueError: no such file'
    >>> last_error(["Fatal Python error: Aborted", "Current thread 0x7f (most recent call first):",
    ...             '  File "/jobs/train.py", line 5 in save', "Extension modules: torch._C (total: 1)"])
    'Fatal Python error: Aborted (train.py:5 in save)'
    >>> last_error(["Epoch 3: 90%"], -9), last_error(["Epoch 3: 90%"], 1)
    ('', 'Epoch 3: 90%')
    """
    filled = [line.strip() for line in lines if line.strip()]
    fatal = max((i for i, line in enumerate(filled) if _FATAL.match(line)), default=None)
    if fatal is not None and not _exceptions(filled[fatal + 1 :]):
        thrown = [found[1] for line in filled[:fatal] if (found := _THROWN.match(line))]
        told = thrown[-1:] or [filled[fatal] + _place(filled[fatal + 1 :])]
    else:
        told = _exceptions(filled)
        if not told and code != -signal.SIGKILL:
            told = [line for line in filled if not _OF_A_DUMP.match(line)] or filled
    return (told or [""])[-1][:_LONGEST]


def _exceptions(filled: Sequence[str]) -> list[str]:
    return [line for line in filled if _EXCEPTION.match(line)]


def _place(dump: Sequence[str]) -> str:
    """Return the innermost Python frame of the thread that got the signal, as " (train.py:5 in save)"."""
    after = dropwhile(lambda line: not line.startswith("Current thread"), dump)
    frame = next((found for line in list(after)[1:2] if (found := _FRAME.match(line))), None)
    return f" ({PurePosixPath(frame[1]).name}:{frame[2]} in {frame[3]})" if frame else ""
