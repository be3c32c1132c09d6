"""Scripts that pause, which must be left alone, and scripts that hang, which must be named and healed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from anyjob.launch import Launch, Script
from anyjob.sessions import shown
from pulsetrain.core.errors import Unavailable
from pulsetrain.protocol.client import HubAddress

PAUSING = Path(__file__).resolve().parents[1] / "jobs" / "pausing.py"
SLEEPING = ("first_batch", "download", "loader", "debugger", "retry")
BUSY = ("save", "evaluation", "compile")
HANGS = ("stop", "skip", "gil", "spin", "lock")
SECONDS = (5, 20, 60)
NAMED_S, HEALED_S = 5.0, 60.0
START_S, AFTER_S = 240.0, 120.0
POLL_S = 0.1
BEGINS = re.compile(r"\bbegins (\w+)")
FINISHED = re.compile(r"\bfinished attempt (\d+) loss (\S+)")
Row = dict[str, Any]


class Observed:
    """One launch of the pausing script: what its log and the hub said, and when."""

    def __init__(self, kind: str, seconds: float, hub: HubAddress, folder: Path, *, save: bool) -> None:
        self.kind, self.seconds, self.save = kind, seconds, save
        name = f"{kind}-{seconds:g}{'' if save else '-bare'}"
        argv = [str(PAUSING), kind, str(seconds), "--folder", str(folder / name / "state")]
        script = Script(name=name, argv=(*argv, *(() if save else ("--no-save",))), nodes=1, ranks_per_node=2)
        self.launch = Launch(script, hub, folder / name, job=name)
        self._began_s = time.monotonic()
        self.onset_s: float | None = None
        self.healed_s: float | None = None
        self.attempts = 0
        self.named: list[Row] = []

    @property
    def over(self) -> bool:
        """Whether the job has ended, or has had its time."""
        late_s = START_S + self.seconds + AFTER_S
        return self.launch.over or time.monotonic() - self._began_s > late_s

    def look(self) -> None:
        """Read the log, and ask the hub."""
        now_s, text = time.monotonic(), self.text
        if self.onset_s is None and BEGINS.search(text):
            self.onset_s = now_s
        try:
            status = self.launch.status()
        except Unavailable:
            return
        self.attempts = max(self.attempts, status.get("attempt", 0))
        for finding in shown(status):
            if not any(_same(finding, known) for known in self.named):
                after_s = None if self.onset_s is None else round(now_s - self.onset_s, 2)
                self.named.append({"after_s": after_s, **finding})
        if self.healed_s is None and status.get("recoveries") and self.onset_s is not None:
            self.healed_s = round(now_s - self.onset_s, 2)

    @property
    def text(self) -> str:
        """What the job has printed."""
        try:
            return self.launch.log(0).read_text(errors="replace")
        except OSError:
            return ""

    def row(self) -> Row:
        """Return what was seen."""
        finished = FINISHED.search(self.text)
        printed = int(finished[1]) if finished else 0
        return {
            "kind": self.kind,
            "seconds": self.seconds,
            "save": self.save,
            "exit": self.launch.codes[0],
            "finished": finished is not None,
            "restarts": max(self.attempts, printed),
            "onset": self.onset_s is not None,
            "healed_s": self.healed_s,
            "named": self.named,
            "wall_s": round(time.monotonic() - self._began_s, 1),
            "end": [] if finished else self.launch.last_lines(0),
        }


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(one[name] == other[name] for name in ("kind", "subject_type", "subject", "severity"))


def together(
    what: str, jobs: Sequence[tuple[str, float, bool]], hub: HubAddress, folder: Path
) -> Iterator[Row]:
    """Run several jobs (kind, seconds, whether it saves) at once, and yield a row for each."""
    running = [Observed(kind, seconds, hub, folder, save=save) for kind, seconds, save in jobs]
    ended: list[Observed] = []
    try:
        for observed in running:
            observed.launch.__enter__()
        while len(ended) < len(running):
            for observed in running:
                if observed in ended:
                    continue
                observed.look()
                if observed.over:
                    ended.append(observed)
                    yield {"what": what, **observed.row()}
            time.sleep(POLL_S)
    finally:
        for observed in running:
            observed.launch.end()


def groups() -> list[list[tuple[str, float, bool]]]:
    """Return the pauses that run at the same time: all that only wait, and those that compute in pairs.

    >>> sum(len(group) for group in groups())
    58
    """
    made: list[list[tuple[str, float, bool]]] = []
    for seconds in SECONDS:
        made.append([(kind, seconds, save) for kind in SLEEPING for save in (True, False)])
        made += [[(kind, seconds, save) for save in (True, False)] for kind in BUSY]
    return [
        *made,
        [(kind, SECONDS[-1], True) for kind in SLEEPING] + [(kind, 30, False) for kind in SLEEPING],
    ]


def pauses(rows: Sequence[Mapping[str, Any]]) -> Row:
    """Return {"runs", "restarts"}, how many ended as under torchrun, and what was named in them."""
    runs = [row for row in rows if row["what"] == "pause"]
    return {
        "runs": len(runs),
        "restarts": sum(row["restarts"] for row in runs),
        "finished": sum(row["finished"] and row["exit"] == 0 for row in runs),
        "warned": sum(any(f["severity"] != "info" for f in row["named"]) for row in runs),
        "by": _by_kind(runs),
    }


def _by_kind(runs: Sequence[Mapping[str, Any]]) -> dict[str, Row]:
    kinds = sorted({row["kind"] for row in runs})
    return {
        kind: {
            "runs": sum(row["kind"] == kind for row in runs),
            "restarts": sum(row["restarts"] for row in runs if row["kind"] == kind),
        }
        for kind in kinds
    }


def named_after_s(row: Mapping[str, Any]) -> float | None:
    """Return when the rank that hangs, always rank 1, was first named; None where it never was."""
    times = [
        f["after_s"]
        for f in row["named"]
        if f["kind"] == "hang" and (f["subject_type"], f["subject"]) == ("rank", "1")
    ]
    return min((t for t in times if t is not None), default=None)


def hangs(rows: Sequence[Mapping[str, Any]]) -> Row:
    """Return how many hangs there were, were named in `NAMED_S`, and were healed in `HEALED_S`."""
    runs = [row for row in rows if row["what"] == "hang"]
    named = [named_after_s(row) for row in runs]
    healed = [row["healed_s"] for row in runs]
    return {
        "runs": len(runs),
        "named": sum(t is not None and t <= NAMED_S for t in named),
        "healed": sum(t is not None and t <= HEALED_S for t in healed),
        "named_s": {row["kind"]: t for row, t in zip(runs, named, strict=True)},
        "healed_s": {row["kind"]: t for row, t in zip(runs, healed, strict=True)},
    }
