"""What a rank that others wait for does: it cannot move, works, waits, turns in one place, or nothing. Pure.

The same silence is a hang or a pause. The process tells them apart: a rank that saves moves bytes, one that
evaluates uses its processor in changing places, one that downloads waits in a system call that ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pulsetrain.analytics.hangs.posture import Posture
from pulsetrain.analytics.hangs.stacks import MAIN
from pulsetrain.protocol.messages import ProcessState, RankActivity

Kind = Literal[
    "frozen",  # stopped, a zombie or gone
    "mismatch",  # its operation can never meet those of its peers
    "held_gil",  # a thread holds the interpreter lock and does nothing
    "loop",  # it runs Python in one or two lines and changes nothing
    "spin",  # it computes outside Python, called from one line
    "device",  # it turns in a call that waits for its device
    "still",  # nothing of it moves
    "network",  # every member joined, and no data moves
    "waits",  # it waits in a system call that ends by itself or from outside
    "slow_phase",  # it saves, evaluates, loads or compiles
    "debugger",  # a person looks at it
    "unknown",  # its activity, or what it waits for, could not be read
    "working",  # bytes, processors or children move
]
MAY_PAUSE: tuple[Kind, ...] = ("waits", "slow_phase", "unknown", "spin", "device")
"""Conditions that a healthy rank is in for minutes."""
FROZEN: tuple[ProcessState, ...] = ("stopped", "zombie", "gone")  # a process that cannot move
MOVED_NS = 2_500_000_000  # work within so long counts as now. A heartbeat comes each second
LOOKED_NS = 3_000_000_000  # a busy rank must stand in one place for so long to be more than busy
LOOKED_TIMES = 3
CORES_OF_A_LOOP = 1.3  # a loop turns on one thread. Computing in several threads is work
LINES_OF_A_LOOP = 2  # lines in which an idle loop turns. Code that works passes through more
FAULTS_OF_A_LOOP = 20.0  # page faults per second. What computes takes and gives back memory
BUSY = 0.05
MOVED_BYTES_S = 4096.0

_OF_OTHERS = ("poll", "read", "child", "other")  # calls that a disk, a server or another program ends

# Parts of frames "function (folder/file.py:line)" that say what a rank does. `_dynamo/eval_frame.py` is not
# among them: it is on the stack of every compiled function that runs.
_DEBUGGERS = ("(pdb.py", "/pdb.py", "/bdb.py", "debugpy/", "pydevd", "/code.py:", "IPython/", "ipdb/")
_COMPILERS = (
    "_dynamo/convert_frame.py",
    "_inductor/compile_fx.py",
    "_inductor/async_compile.py",
    "_inductor/codecache.py",
    "_inductor/graph.py",
    "utils/cpp_extension.py",
    "triton/compiler",
    "compiler/compiler.py",
)
_SAVERS = (
    "torch/serialization.py",
    "checkpoint/state_dict_saver.py",
    "checkpoint/state_dict_loader.py",
    "checkpoint/filesystem.py",
    "safetensors/torch.py",
)
_LOADERS = ("data/dataloader.py", "_utils/fetch.py", "_utils/worker.py", "datasets/arrow_dataset.py")


@dataclass(frozen=True, kw_only=True)
class Condition:
    """What one rank does, as a clause with the rank as its subject. `lasts_ns`: for how long, if known."""

    kind: Kind
    why: str
    lasts_ns: int = 0


def judge(
    state: ProcessState,
    slow_phase: str,
    activity: RankActivity | None = None,
    posture: Posture | None = None,
) -> Condition:
    """Return what a rank does that its peers wait for.

    `slow_phase` is the phase it is in, "" for one of an ordinary step. Missing activity or stacks make a
    condition less certain, never more.

    >>> judge("stopped", "").kind
    'frozen'
    >>> moves = RankActivity(rank=0, cpu_ratio=0.1, helper_cpu_ratio=0.0, io_bytes_s=5e6, still_ns=0)
    >>> judge("sleeping", "", moves).kind
    'working'
    """
    frames = posture.newest.frames if posture else ()
    if (activity is not None and activity.traced) or _in(frames, _DEBUGGERS):
        return Condition(kind="debugger", why="is under a debugger")
    if state == "stopped" and is_continued(activity):
        return Condition(kind="working", why="is stopped and continued again and again")
    if state in FROZEN:
        return Condition(kind="frozen", why=f"is {state}")
    if activity is None and posture is None:
        kind: Kind = "slow_phase" if slow_phase else "unknown"
        return Condition(kind=kind, why=f"is in {slow_phase}" if slow_phase else "cannot be looked into")
    return (
        (_working(activity, posture) if activity is not None else None)
        or _slow(slow_phase, frames)
        or _held_gil(state, activity, posture)
        or _loop(activity, posture)
        or _waiting(state, activity, posture)
    )


def is_continued(activity: RankActivity | None) -> bool:
    """Return whether a rank that was seen stopped ran within the last second, as a throttled one does."""
    return activity is not None and activity.cpu_ratio > 0


def stands(posture: Posture | None) -> bool:
    """Return whether the main thread was in one place in every reading, for long enough."""
    return posture is not None and posture.same_ns >= LOOKED_NS and posture.samples >= LOOKED_TIMES


def moves_bytes(activity: RankActivity) -> bool:
    """Return whether the rank or its children read or write now."""
    return activity.io_bytes_s >= MOVED_BYTES_S


def _working(activity: RankActivity, posture: Posture | None) -> Condition | None:
    """Bytes or children move, or it computes and is not known to turn in one place."""
    if activity.still_ns > MOVED_NS:
        return None
    if activity.helper_cpu_ratio >= BUSY:
        return Condition(kind="working", why=f"has children that use {activity.helper_cpu_ratio:.1f} cores")
    if moves_bytes(activity):
        return Condition(kind="working", why=f"moves {activity.io_bytes_s / 1e6:.1f} MB/s")
    if activity.cpu_ratio < BUSY:
        return Condition(kind="working", why="worked a moment ago")
    one_thread = activity.cpu_ratio <= CORES_OF_A_LOOP and activity.faults_s <= FAULTS_OF_A_LOOP
    if stands(posture) and one_thread:
        return None
    return Condition(kind="working", why=f"uses {activity.cpu_ratio:.1f} cores")


def _held_gil(
    state: ProcessState, activity: RankActivity | None, posture: Posture | None
) -> Condition | None:
    """One thread holds the GIL in every reading, does not move and does not compute.

    One that waits for a file, as an import or a page of mapped memory on a slow disk, goes on by itself.
    """
    if posture is None or posture.gil_samples < LOOKED_TIMES or state == "disk":
        return None
    if activity is None or activity.cpu_ratio >= BUSY or activity.waits_in in _OF_OTHERS:
        return None
    why = f"cannot run Python: its thread {posture.newest.gil} holds the GIL and does nothing"
    return Condition(kind="held_gil", why=why, lasts_ns=posture.gil_held_ns)


def _slow(slow_phase: str, frames: Iterable[str]) -> Condition | None:
    if slow_phase:
        return Condition(kind="slow_phase", why=f"is in {slow_phase}")
    for what, parts in (("compiles", _COMPILERS), ("saves or loads", _SAVERS), ("waits for data", _LOADERS)):
        if _in(frames, parts):
            return Condition(kind="slow_phase", why=what)
    return None


def _loop(activity: RankActivity | None, posture: Posture | None) -> Condition | None:
    """It computes, and every reading has the same stack.

    In Python it holds the GIL each time, and moves between few lines. Outside Python it may be a long
    computation, which nobody can tell from a loop. So may be one line that calls something: some functions
    keep the GIL. Where the main thread is in the kernel, another one computes.
    """
    if activity is None or posture is None or activity.cpu_ratio < BUSY:
        return None
    newest = posture.newest
    other = newest.gil if newest.gil != MAIN else ""
    if activity.waits_in or other:
        return Condition(
            kind="waits", why=f"stands while {f'its thread {other}' if other else 'it'} computes"
        )
    if posture.gil_samples < posture.samples and newest.device_line:
        return Condition(kind="device", why="waits for its device", lasts_ns=posture.same_ns)
    if posture.gil_samples < posture.samples:
        return Condition(kind="spin", why="computes, called from one line", lasts_ns=posture.same_ns)
    if len(posture.leaves) > LINES_OF_A_LOOP:
        return Condition(kind="working", why="runs Python in one function")
    if len(posture.leaves) < LINES_OF_A_LOOP and not newest.idle_line:
        return Condition(kind="spin", why="computes in one line", lasts_ns=posture.same_ns)
    return Condition(kind="loop", why="loops in one line", lasts_ns=posture.same_ns)


def _waiting(state: ProcessState, activity: RankActivity | None, posture: Posture | None) -> Condition:
    if state == "disk":
        return Condition(kind="waits", why="is blocked in the kernel")
    if activity is None:
        return Condition(kind="unknown", why="stands in one place, and its activity is unknown")
    calls = {
        "sleep": "sleeps",
        "poll": "waits for input",
        "read": "waits for input",
        "child": "waits for a child",
    }
    if activity.waits_in in calls:
        return Condition(kind="waits", why=calls[activity.waits_in], lasts_ns=activity.still_ns)
    if not activity.waits_in:
        return Condition(kind="unknown", why="does nothing, and what it waits for cannot be read")
    if posture is None:
        return Condition(kind="unknown", why="does nothing, and its stacks cannot be read")
    why = _what_may_end_it(activity, posture)
    if why:
        return Condition(kind="waits", why=why, lasts_ns=activity.still_ns)
    return Condition(kind="still", why="does nothing", lasts_ns=activity.still_ns)


def _what_may_end_it(activity: RankActivity, posture: Posture) -> str:
    """Return what may end the wait of a rank, "" where it waits for a lock of its own program.

    Calls to write, to open or to lock a file end where a disk, a server or another program does its part.
    """
    if activity.waits_in != "lock":
        return "waits in a call to the kernel"
    if posture.newest.helper:
        return f"waits for its thread {posture.newest.helper}"
    if posture.newest.cut:
        return "waits for a lock, and has more threads than are read"
    return "" if posture.newest.locked else "waits for a lock in a library"


def _in(frames: Iterable[str], parts: Iterable[str]) -> bool:
    return any(part in frame for frame in frames for part in parts)
