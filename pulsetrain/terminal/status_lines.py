"""What `pulsetrain status` prints for people. click drops the colours where there is no terminal."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

import click

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.models.states import JOB_STATES, look
from pulsetrain.dashboard.models.text import ago, clock, duration
from pulsetrain.terminal.colours import colour
from pulsetrain.terminal.printable import printable
from pulsetrain.terminal.view import JobView, View

MOST_PAST_JOBS = 10


def job_lines(job: JobView, now_ns: int) -> Iterator[str]:
    """How a job is, since when, what to do, and how far it is."""
    state = look(job.state, JOB_STATES)
    yield f"{click.style(job.job, bold=True)}: {click.style(job.sentence, fg=colour(state))}"
    since = f" since {clock(job.since_ns)} UTC, {ago(job.since_ns, now_ns)}" if job.since_ns else ""
    yield f"  {state.glyph} {state.label}{since}. {progress_line(job)}".rstrip()
    if job.to_do != "Nothing.":
        yield click.style(f"  What to do: {job.to_do}", bold=True)
    if job.pending is not None:
        yield f"  Decide: pulsetrain pending {shlex.quote(job.job)} --wait MINUTES | --now --reason TEXT"


def progress_line(job: JobView) -> str:
    """Step, length of a step and MFU, as far as they are known."""
    facts = [f"step {job.step:,}"] if job.step >= 0 else []
    facts += [f"{duration(job.step_s * 1e9)} a step"] if job.step_s else []
    facts += [f"MFU {job.mfu:.1%}"] if job.mfu is not None else []
    facts += [f"attempt {job.attempt}"] if job.attempt >= 0 else []
    facts += [f"ETTR {job.ettr}"] if job.ettr else []
    line = ", ".join(facts)
    return f"{line[:1].upper()}{line[1:]}." if line else ""


def waiting_line(hub: JsonObject) -> str:
    """Return what a hub says that does not lead, "" for one that does.

    >>> waiting_line({"role": "waiting", "leader": "http://a:8780"})
    'This hub waits. The leader is http://a:8780.'
    >>> waiting_line({"role": "alone"})
    ''
    """
    if hub.get("role") not in ("waiting", "deposed"):
        return ""
    return f"This hub waits. The leader is {printable(hub.get('leader') or 'not known')}."


def past_lines(view: View) -> Iterator[str]:
    """The newest jobs that are on record and do not run on this hub, one line each."""
    past = [job for job in view.jobs if not job.runs_here]
    if past:
        yield "On record:"
    for job in past[:MOST_PAST_JOBS]:
        state = look(job.state, JOB_STATES)
        yield f"  {click.style(f'{state.glyph} {job.job}', fg=colour(state))}: {job.sentence}"
    if len(past) > MOST_PAST_JOBS:
        yield f"  and {len(past) - MOST_PAST_JOBS} more"


def own_checkpoint_line(own: JsonObject) -> str:
    """Return one line about the newest checkpoint that the script wrote by itself.

    >>> own = {"step": 30, "bytes": 2_500_000, "age_s": 61.0, "path": "/c/30.pt", "complete": True}
    >>> own_checkpoint_line(own)
    'Own checkpoint: step 30, 2.5 MB, 61 s old, /c/30.pt'
    """
    whole = "" if own["complete"] else " (not yet written by every rank)"
    size, age = f"{own['bytes'] / 1e6:.1f} MB", f"{own['age_s']:.0f} s old"
    return f"Own checkpoint: step {own['step']}, {size}, {age}, {printable(own['path'])}{whole}"


def update_line(update: JsonObject, now_ns: int, *, over: bool = False) -> str:
    """Return one line about the newest update of a job's program. `over`: the job has finished or failed.

    >>> update = {"number": 2, "state": "rolled_back", "why": "rank 0 on a ended with exit code 1"}
    >>> update_line(update, 0)
    'Update 2: rolled back: rank 0 on a ended with exit code 1'
    """
    head = f"Update {update['number']}"
    state = update["state"]
    if state == "in_force":
        return f"{head}: in force"
    if state in ("rolled_back", "cancelled"):
        return f"{head}: {state.replace('_', ' ')}: {printable(update['why'])}"
    who = f"{head} of {printable(update['actor'])} ({printable(update['reason'])})"
    if over:
        return f"{who}: the job was over before it was in force"
    if state == "trying":
        failed = len(update["failed_attempts"])
        return f"{who}: is tried{f', {failed} attempts failed' if failed else ''}"
    left_ns = update["until_ns"] - now_ns
    when = f"at the latest in {duration(left_ns)}" if left_ns > 0 else "or for the next saved step"
    why = f": {printable(update['why'])}" if update["why"] else ""
    return f"{who}: waits for the next restart, {when}{why}"


def tells_instrumentation(job: JsonObject) -> bool:
    """Return whether it is known how a job is instrumented.

    Ranks tell it now and then. Those of a job that was over within seconds had no time for it.
    """
    described = job.get("instrumentation") or {}
    unknown = set(described.values()) == {"none"} and job["state"] in ("finished", "failed", "ended")
    return bool(described) and not unknown


def instrumentation_line(described: Mapping[str, str]) -> str:
    """Return one line about what the script says itself and what is inferred.

    >>> instrumentation_line({"steps": "inferred", "loss": "explicit", "tokens": "batch"})
    'Instrumentation: steps inferred, loss explicit, tokens batch'
    """
    return "Instrumentation: " + ", ".join(f"{name} {printable(value)}" for name, value in described.items())


def dropped(gauges: Mapping[str, float]) -> str:
    """Return the rows that a node's agent lost, by reason. "0" means that it lost nothing.

    >>> dropped({"dropped_rows": 3.0, "dropped_spool_full": 3.0, "ring_dropped": 1.0})
    'ring_full 1, spool_full 3'
    """
    lost = {n.removeprefix("dropped_"): count for n, count in gauges.items() if n.startswith("dropped_")}
    lost.pop("rows", None)  # the sum of the others
    if gauges.get("ring_dropped"):
        lost["ring_full"] = gauges["ring_dropped"]
    return ", ".join(f"{reason} {count:.0f}" for reason, count in sorted(lost.items())) or "0"
