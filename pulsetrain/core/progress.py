"""How far long work has come, on standard error: a bar in a terminal, else a line now and then.

Nothing is shown of work that is short. The bar disappears at the end, so that only the result stays. Without
the package rich there are lines in a terminal too.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal, Protocol, TextIO

if TYPE_CHECKING:
    import rich.progress

Unit = Literal["bytes", "days", "messages", "rows", "runs", "steps"]

SHORT_S = 0.7
"""Work that is done sooner shows no bar."""
LINE_S = 10.0
"""Time between two lines where there is no bar."""
_LEAST_S = 0.1  # between two changes of the bar, however often work reports
_NO_BAR = ("", "dumb", "unknown")
_BYTES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


class Report(Protocol):
    """Takes how much is done. `total` is how much there is, for work that learns it late or has it grow."""

    def __call__(self, done: float, total: float | None = None) -> None:
        """So much is done now."""
        ...


def unseen(done: float, total: float | None = None) -> None:
    """The `Report` of work that nobody watches."""


def after(report: Report, before: float) -> Report:
    """A `Report` for one part of the work, `before` being what the parts before it amount to."""

    def part(done: float, total: float | None = None) -> None:
        report(before + done, total)

    return part


@contextlib.contextmanager
def progress(
    what: str,
    *,
    total: float | None = None,
    unit: Unit = "rows",
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Report]:
    """Show `what` is done and how far it has come. Yields the function that takes how much is done.

    Where it is never called, a terminal shows that the work goes on and for how long. `stream` is standard
    error by default. The terminal is as before when the context ends, also after an exception.
    """
    stream = sys.stderr if stream is None else stream
    bar = _new_bar(what, stream) if has_bar(stream) else None
    if bar is None:
        yield _Lines(what, total, unit, stream, clock)
        return
    shown = _Bar(bar, what, total, unit, clock)
    try:
        yield shown
    finally:
        shown.close()


def has_bar(stream: TextIO) -> bool:
    """Whether a bar may be drawn on `stream`: it is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "") not in _NO_BAR


def amount(done: float, total: float | None, unit: Unit) -> str:
    """How much is done of how much.

    >>> amount(1_200_000, 5_000_000, "rows"), amount(3 << 29, None, "bytes")
    ('1,200,000 of 5,000,000 rows', '1.5 GiB')
    """
    if unit != "bytes":
        whole = "" if total is None else f" of {total:,.0f}"
        return f"{done:,.0f}{whole} {unit}"
    size, name = next(((s, n) for s, n in _BYTES if max(done, total or 0) >= s), (1, "bytes"))
    whole = "" if total is None else f" of {total / size:.{size > 1:d}f}"
    return f"{done / size:.{size > 1:d}f}{whole} {name}"


class _Lines:
    """A line now and then."""

    def __init__(
        self, what: str, total: float | None, unit: Unit, stream: TextIO, clock: Callable[[], float]
    ) -> None:
        self._what, self._total, self._unit = what, total, unit
        self._stream, self._clock = stream, clock
        self._began_s = self._said_s = clock()

    def __call__(self, done: float, total: float | None = None) -> None:
        """See `Report`."""
        self._total, now_s = self._total if total is None else total, self._clock()
        if now_s - self._said_s < LINE_S:
            return
        self._said_s = now_s
        text = amount(done, self._total, self._unit) + left(done, self._total, now_s - self._began_s)
        self._stream.write(f"pulsetrain: {self._what}: {text}\n")
        self._stream.flush()


def left(done: float, total: float | None, took_s: float) -> str:
    """The time that the rest takes at the rate so far. "" where nobody knows.

    >>> left(20, 80, 10.0), left(20, None, 10.0)
    (', 30 s left', '')
    """
    if not total or done <= 0:
        return ""
    left_s = took_s * max(0.0, total - done) / done
    return f", {left_s:.0f} s left" if left_s < 90 else f", {left_s / 60:,.0f} min left"


class _Bar:
    """A bar that appears when the work has taken `SHORT_S`. It is drawn by a thread of its own."""

    def __init__(
        self,
        bar: rich.progress.Progress,
        what: str,
        total: float | None,
        unit: Unit,
        clock: Callable[[], float],
    ) -> None:
        self._bar, self._total, self._unit, self._clock = bar, total, unit, clock
        self._began_s = clock()
        self._task = bar.add_task(what, total=total, amount="")
        self._lock, self._closed, self._drawn_s = threading.Lock(), False, -1.0
        self._timer = threading.Timer(SHORT_S, self._start)
        self._timer.daemon = True
        self._timer.start()

    def __call__(self, done: float, total: float | None = None) -> None:
        """See `Report`."""
        self._total, now_s = self._total if total is None else total, self._clock()
        if now_s - self._drawn_s >= _LEAST_S:
            self._drawn_s = now_s
            shown = amount(done, self._total, self._unit) + left(done, self._total, now_s - self._began_s)
            self._bar.update(self._task, completed=done, total=self._total, amount=shown)

    def close(self) -> None:
        """Remove the bar."""
        self._timer.cancel()
        with self._lock:
            self._closed = True
            self._bar.stop()

    def _start(self) -> None:
        with self._lock:
            if not self._closed:
                self._bar.start()


def _new_bar(what: str, stream: TextIO) -> rich.progress.Progress | None:
    """A bar that is not drawn yet. None where rich is not installed."""
    try:
        from rich import progress as bars
        from rich.console import Console
    except ModuleNotFoundError:
        return None
    return bars.Progress(
        bars.SpinnerColumn(),
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(bar_width=30),
        bars.TextColumn("{task.fields[amount]}", markup=False),
        bars.TimeElapsedColumn(),
        console=Console(file=stream, highlight=False),
        transient=True,
        redirect_stdout=False,
        refresh_per_second=5,
    )
