"""What the agent's zygote calls in a freshly forked rank, before the user's script runs."""

from __future__ import annotations

import importlib

from pulsetrain.collectors.rank.handle import Handle, process_handle

HOOKS = (
    "pulsetrain.collectors.rank.hooks",
    "pulsetrain.collectors.rank.device_hooks",
    "pulsetrain.collectors.rank.squash.hooks",
    "pulsetrain.collectors.rank.pipeline",
    "pulsetrain.collectors.rank.garbage",
    "pulsetrain.collectors.rank.processor",
    "pulsetrain.collectors.rank.auto.install",
)


def install() -> None:
    """Open the ring that the environment names.

    Hook collectives, shared devices, pipeline stages, garbage collection, run queue, and what infers steps
    and phases.

    Never raises. Without an agent it does nothing. A hook that does not fit this version of torch is counted
    on the status page and left out. The others work without it.
    """
    handle = process_handle()
    if handle.active:
        for name in HOOKS:
            _hook(name, handle)


def _hook(name: str, handle: Handle) -> None:
    try:
        importlib.import_module(name).install(handle)
    except Exception:  # noqa: BLE001 - the script must run with or without our hooks; the fault is counted
        handle.fault()
