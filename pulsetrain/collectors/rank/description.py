"""How this rank is instrumented, as a JSON text on the ring's status page.

The text says for each kind where it comes from: `explicit` (the script's own calls), `inferred` or `none`.
Other entries are free: ``{"steps": "inferred", "loss": "inferred", "framework": "transformers 5.1"}``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pulsetrain.collectors.layout import TEXT_BYTES

if TYPE_CHECKING:
    from pulsetrain.collectors.rank.ring import RingWriter

EXPLICIT, INFERRED, NONE = "explicit", "inferred", "none"
KINDS = ("steps", "phases", "loss", "tokens", "flops")


class Description:
    """Entries by name. It is written only when an entry changes, so it costs nothing in a steady state."""

    def __init__(self, ring: RingWriter) -> None:
        self._ring = ring
        self._entries: dict[str, str] = dict.fromkeys(KINDS, NONE)
        self._write()

    def get(self, name: str) -> str:
        """Return an entry, "" where there is none."""
        return self._entries.get(name, "")

    def set(self, name: str, value: str) -> None:
        """Set an entry. Raises `ValueError` if the text would not fit into 1016 bytes. The old one stays."""
        if self._entries.get(name) == value:
            return
        before = dict(self._entries)
        self._entries[name] = value
        try:
            self._write()
        except ValueError:
            self._entries = before
            raise

    def write_again(self) -> None:
        """Write all entries into the ring, which is a new one."""
        self._write()

    def _write(self) -> None:
        text = json.dumps(self._entries, separators=(",", ":")).encode()
        if len(text) > TEXT_BYTES:
            raise ValueError(f"description of {len(text)} bytes; there is room for {TEXT_BYTES}")
        self._ring.set_text(text)
