"""Keys that are pressed in a terminal, one at a time and without an echo."""

from __future__ import annotations

import contextlib
import os
import select
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

Keys = Callable[[float], str]
"""Waits so many seconds for a key and returns its name: "up", "down", a character, or "" for none."""

_NAMES: Mapping[bytes, str] = MappingProxyType(
    {b"\x1b[A": "up", b"\x1bOA": "up", b"\x1b[B": "down", b"\x1bOB": "down", b"\t": "down", b"\x1b[Z": "up"}
)
END = "end"
"""The terminal is gone."""


def key_name(pressed: bytes) -> str:
    """The name of the first key in what the terminal sent. A key that is not known is "".

    >>> key_name(b"\\x1b[A"), key_name(b"qq"), key_name(b"\\x1b[15~")
    ('up', 'q', '')
    """
    if not pressed:
        return END
    for sent, name in _NAMES.items():
        if pressed.startswith(sent):
            return name
    return "" if pressed.startswith(b"\x1b") else pressed[:1].decode("ascii", errors="ignore")


@contextlib.contextmanager
def keys_of(fd: int) -> Iterator[Keys]:
    """Read keys of the terminal `fd` as they are pressed. Its settings come back at the end.

    Where `fd` is no terminal, nobody presses a key.
    """
    if not os.isatty(fd):
        yield _nobody
        return
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield lambda wait_s: _read(fd, wait_s)
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _nobody(wait_s: float) -> str:
    time.sleep(wait_s)
    return ""


def _read(fd: int, wait_s: float) -> str:
    ready, _, _ = select.select([fd], [], [], wait_s)
    return key_name(os.read(fd, 64)) if ready else ""
