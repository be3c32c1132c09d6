"""Put the automatic instrumentation into a rank, part by part."""

from __future__ import annotations

import atexit
import importlib
import os
from collections.abc import Mapping

from pulsetrain.collectors.rank.auto.context import Auto
from pulsetrain.collectors.rank.auto.imports import ImportWatch
from pulsetrain.collectors.rank.auto.loop import TrainingLoop
from pulsetrain.collectors.rank.auto.segments import Segments
from pulsetrain.collectors.rank.handle import Handle

SWITCH = "PULSETRAIN_AUTO"

_FOLDER = "pulsetrain.collectors.rank.auto"
PARTS = (
    f"{_FOLDER}.backward",
    f"{_FOLDER}.optimizers",
    f"{_FOLDER}.engines",
    f"{_FOLDER}.loader",
    f"{_FOLDER}.evaluation",
    f"{_FOLDER}.schedules",
    f"{_FOLDER}.rehearsals",
    f"{_FOLDER}.mesh",
    f"{_FOLDER}.frameworks",
    f"{_FOLDER}.saves",
    f"{_FOLDER}.loads",
)
"""Modules with `install(auto)`, in order. One that fails is counted and left out."""


def install(handle: Handle) -> None:
    """Infer what the script does not say. Does nothing where `PULSETRAIN_AUTO` is 0."""
    if handle.description is None:
        return
    if not is_on(os.environ):
        handle.description.set("auto", "off")
        return
    auto = context(handle)
    for name in PARTS:
        _install_part(name, auto)
    atexit.register(_finish, auto)
    handle.before_restart.append(auto.loop.begin_again)


def context(handle: Handle) -> Auto:
    """Return what the parts are given. From now on the handle asks it for what the script does not say.

    Raises `ValueError` for a handle without an agent.
    """
    if handle.description is None:
        raise ValueError("no agent listens")
    segments = Segments(handle)
    loop = TrainingLoop(handle, segments, handle.description)
    handle.inference = loop
    return Auto(handle, segments, loop, handle.description, ImportWatch(handle.fault))


def _finish(auto: Auto) -> None:
    """Record the last step, whose end may still be uncertain when the script ends."""
    try:
        auto.segments.switch("")
        auto.loop.finish()
    except Exception:  # noqa: BLE001 - the script's exit must not fail because of us
        auto.handle.fault()


def is_on(environ: Mapping[str, str]) -> bool:
    """Return whether the environment lets us infer.

    >>> is_on({}), is_on({"PULSETRAIN_AUTO": "0"})
    (True, False)
    """
    return environ.get(SWITCH, "1").lower() not in ("0", "false", "no", "off")


def _install_part(name: str, auto: Auto) -> None:
    try:
        importlib.import_module(name).install(auto)
    except Exception:  # noqa: BLE001 - the script must run with or without this part; the fault is counted
        auto.handle.fault()
