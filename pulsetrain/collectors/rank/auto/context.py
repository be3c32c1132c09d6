"""What every part of the automatic instrumentation is given."""

from __future__ import annotations

from dataclasses import dataclass

from pulsetrain.collectors.rank.auto.imports import ImportWatch
from pulsetrain.collectors.rank.auto.loop import TrainingLoop
from pulsetrain.collectors.rank.auto.segments import Segments
from pulsetrain.collectors.rank.description import Description
from pulsetrain.collectors.rank.handle import Handle


@dataclass(frozen=True, slots=True)
class Auto:
    """The rank's handle, its inferred phases, its loop, its description, and the watch on later imports.

    A part is a module with `install(auto)`. Every hook of a part catches its own faults (`handle.fault`),
    does nothing once `handle.state` is None (a forked child), and lets the script's exceptions pass.
    """

    handle: Handle
    segments: Segments
    loop: TrainingLoop
    description: Description
    imports: ImportWatch
