"""The type of JSON objects whose keys are free."""

from __future__ import annotations

from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object as `json.loads` returns it. Use it only where no shape is known: a shape that is known is a
TypedDict or a dataclass."""
