"""Reads small files that the kernel makes: half of the processor time of an ordinary text file."""

from __future__ import annotations

import os
from pathlib import Path

_CHUNK_BYTES = 1 << 16


def read_text(path: Path) -> str:
    """Return the whole file, with a mark for each byte that is no UTF-8. Raises `OSError`."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        chunks = []
        while chunk := os.read(file, _CHUNK_BYTES):
            chunks.append(chunk)
    finally:
        os.close(file)
    return b"".join(chunks).decode(errors="replace")
