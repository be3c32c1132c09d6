"""JSON objects whose keys are free, and text that JSON may hold and no store can."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object as `json.loads` returns it. Use it only where no shape is known: a shape that is known is a
TypedDict or a dataclass."""


def refuse_half_pairs(value: object) -> None:
    """Raise `ValueError` where a text in `value` holds half a surrogate pair: JSON may, no store can."""
    json.dumps(value, ensure_ascii=False).encode()
