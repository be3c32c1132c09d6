"""The command line: one function for each command, which parses, calls and prints.

Heavy imports (torch, chDB, Streamlit) happen inside the commands that need them, so that each starts fast.
"""

from pulsetrain.cli.interrupts import importing

with importing():
    from pulsetrain.cli import (
        audit,
        checkpoints,
        completion,
        decisions,
        hanging,
        launching,
        machine,
        moves,
        operate,
        operating,
        private_ca,
        profiling,
        recordings,
        records,
        schedules,
        serving,
        simulation,
        standbys,
        stored,
        tokens,
        updating,
        watching,
    )
    from pulsetrain.cli.entry import main
    from pulsetrain.cli.root import pulsetrain

__all__ = [
    "audit",
    "checkpoints",
    "completion",
    "decisions",
    "hanging",
    "launching",
    "machine",
    "main",
    "moves",
    "operate",
    "operating",
    "private_ca",
    "profiling",
    "pulsetrain",
    "recordings",
    "records",
    "schedules",
    "serving",
    "simulation",
    "standbys",
    "stored",
    "tokens",
    "updating",
    "watching",
]
