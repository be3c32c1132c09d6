"""What a handle asks of whatever infers steps, phases and numbers that the script does not give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pulsetrain.collectors.rank.numbers import Number
from pulsetrain.collectors.rank.phases import Span


@dataclass(frozen=True, slots=True)
class InferredNumbers:
    """What is inferred of a step. `tokens` 0 and `flops` None: unknown."""

    tokens: int = 0
    flops: float | None = None
    numbers: Mapping[str, Number] = field(default_factory=dict)


class Inference(Protocol):
    """Infers what a script does not say. It is told what the script says, and leaves that to it."""

    def stand_for(self, name: str, span: Span) -> Span:
        """Infer the phase `name` no more: `span` stands for it. Returns the span to hand out."""
        ...

    def script_gives(self, kind: str) -> None:
        """Note that the script gives its steps, loss, tokens or flops itself."""
        ...

    def take_numbers(self) -> InferredNumbers:
        """Return what is known of the step that ends now."""
        ...
