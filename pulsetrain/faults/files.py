"""Damages files: flips a bit, cuts the end, changes the age. A seed decides where in the file."""

from __future__ import annotations

import os
import random
from pathlib import Path


def flip_byte(path: Path, seed: int = 0) -> int:
    """Flip one bit of one byte. Returns the byte's offset."""
    size = path.stat().st_size
    offset = random.Random(seed).randrange(size)
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ (1 << seed % 8)]))
    return offset


def truncate(path: Path, seed: int = 0) -> int:
    """Cut the file somewhere before its end. Returns the number of bytes left."""
    left = random.Random(seed).randrange(path.stat().st_size)
    os.truncate(path, left)
    return left


def age(path: Path, seconds: float) -> None:
    """Make the file look `seconds` older than it is."""
    stat = path.stat()
    os.utime(path, (stat.st_atime - seconds, stat.st_mtime - seconds))
