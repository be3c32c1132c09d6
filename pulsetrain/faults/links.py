"""A port that is really slow outwards, or lets nothing out: while a file is there.

The kernel paces every new TCP connection that this machine's processes open. A rate of 0 refuses them. What
they serve is not changed, so the port is good inwards.
"""

from __future__ import annotations

import errno
import functools
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ENVIRONMENT = "PULSETRAIN_LINK_FAULT"
"""Path of a file. While it is there, its bits a second are what one connection carries."""
PACING_RATE = 47  # asm-generic/socket.h: SO_MAX_PACING_RATE, bytes a second


def install(environ: Mapping[str, str] = os.environ) -> bool:
    """Obey the file that the environment names, from now on. Whether there is one to obey."""
    named = environ.get(ENVIRONMENT, "")
    if named:
        socket.socket.connect = _paced(socket.socket.connect, Path(named))  # type: ignore[method-assign]
    return bool(named)


def slow_down(file: Path, bits_per_s: float) -> None:
    """Begin the fault that `file` stands for. Remove the file to end it."""
    file.write_text(f"{bits_per_s:g}")


def _paced(connect: Any, file: Path) -> Any:
    @functools.wraps(connect)
    def paced(own: socket.socket, address: Any) -> None:
        if own.type == socket.SOCK_STREAM and own.family == socket.AF_INET and file.exists():
            rate = float(file.read_text()) / 8
            if rate <= 0:
                raise OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))
            own.setsockopt(socket.SOL_SOCKET, PACING_RATE, int(rate))
        connect(own, address)

    return paced
