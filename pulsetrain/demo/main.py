"""`pulsetrain demo`: sets the scene, tells what happens, reports, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pulsetrain.agent.local_hub import LocalHub, local_hub
from pulsetrain.core.errors import PulsetrainError, UsageError
from pulsetrain.demo import cluster, reaper, score
from pulsetrain.demo.cluster import JOB, Cluster, Reference
from pulsetrain.demo.interrupt import interruptible
from pulsetrain.demo.job_monitor import JobMonitor
from pulsetrain.demo.scenario import MIN_STEPS, SLOWDOWN, Scenario
from pulsetrain.stream.queries import demo as queries

FAULTS = 3
REFERENCE_S = 240.0


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """What `pulsetrain demo` was asked for. Raises `UsageError`."""

    exit: bool = False
    """End once the report is printed instead of leaving the dashboard running."""
    report: Path | None = None
    """Where to write the report as JSON."""
    steps: int = field(default_factory=lambda: usual_steps(os.cpu_count() or 1))
    """Optimizer steps of the job."""
    seed: int = 0
    """Seed of the parameters and of the data order."""
    keep: Path | None = None
    """Folder for data and logs that stays; by default a temporary one that does not."""

    def __post_init__(self) -> None:
        if self.steps < MIN_STEPS:
            raise UsageError(
                f"--steps {self.steps}: at least {MIN_STEPS}, for three faults to find their place"
            )
        if self.report is not None and not os.access(self.report.absolute().parent, os.W_OK):
            raise UsageError(f"--report {self.report}: its folder is missing or cannot be written")
        if self.keep is not None and self.keep.exists() and any(self.keep.iterdir()):
            raise UsageError(f"--keep {self.keep}: must be a new or an empty folder")


def usual_steps(cores: int) -> int:
    """Steps that leave the faults their time: the more cores, the shorter a step.

    >>> usual_steps(2), usual_steps(16)
    (120, 720)
    """
    return 120 * min(max(cores // 2, 1), 6)


class Timeline:
    """Prints one line an event: seconds since the start, who, what."""

    def __init__(self, print_: Callable[[str], None]) -> None:
        self._print, self._began_s = print_, time.monotonic()

    def __call__(self, who: str, what: str) -> None:
        """One line."""
        self._print(f"{time.monotonic() - self._began_s:7.1f} s  {who:<10}  {what}")


def run(
    options: DemoOptions,
    print_: Callable[[str], None],
    publish: Callable[[dict[str, Any]], None] | None = None,
) -> int:
    """Run the demo; 0 where every fault was named and the parameters are the reference's, else 1.

    `print_` gets each line for people, `publish` the report.
    Raises `UsageError` where the example is missing, `PulsetrainError` where the job does not come through,
    `KeyboardInterrupt` on SIGINT, SIGTERM and SIGHUP; however it ends, no process of it is left.
    """
    script = cluster.find_script()
    with contextlib.ExitStack() as stack:
        stack.enter_context(interruptible())
        folder = stack.enter_context(work_folder(options.keep))
        mark = uuid.uuid4().hex
        stack.enter_context(reaper.reaper(mark))
        os.environ[reaper.MARK] = mark  # the hub inherits it
        stack.callback(os.environ.pop, reaper.MARK, None)
        say = Timeline(print_)
        say("demo", "starting the hub")
        hub = stack.enter_context(local_hub(folder / "hub"))
        say("demo", f"hub {hub.address.url}, dashboard {hub.dashboard}")
        told = _watched(options, script, folder, hub, mark, say)
        report_ = _finish(options, script, folder, mark, say, told)
        _tell(report_, told, print_)
        if publish is not None:
            publish(report_)
        if options.report:
            options.report.write_text(json.dumps(report_, indent=1) + "\n")
        if not options.exit:
            _linger(hub, print_)
        return 0 if score.passed(report_, FAULTS) else 1


@dataclass(frozen=True, kw_only=True)
class Told:
    """What the watched run left to report."""

    outcomes: list[score.Outcome]
    recoveries: list[dict[str, Any]]
    params_hash: str
    median_step_s: float
    calm_until: int
    slowed: float | None
    wall_s: float


def _arguments(options: DemoOptions, script: Path) -> list[str]:
    shape = ["--tp", "2", "--pp", "2", "--dp", "2", "--device", "cpu"]
    return [str(script), *shape, "--steps", str(options.steps), "--seed", str(options.seed)]


def _watched(
    options: DemoOptions, script: Path, folder: Path, hub: LocalHub, mark: str, say: Timeline
) -> Told:
    hash_file = folder / "hash"
    command = [*_arguments(options, script), "--params-hash-out", str(hash_file)]
    with contextlib.ExitStack() as stack:
        outlook = JobMonitor(hub.address, JOB, say)
        stack.callback(outlook.close)
        nodes = Cluster(folder, hub.address, command, mark)
        stack.callback(nodes.close)
        story = Scenario(cluster=nodes, outlook=outlook, job=JOB, steps=options.steps, say=say)
        began_s = time.monotonic()
        story.run()
        wall_s = time.monotonic() - began_s
        first, last = story.calm
        return Told(
            outcomes=story.outcomes,
            recoveries=outlook.recoveries,
            params_hash=cluster.read_hash(hash_file),
            median_step_s=queries.median_step_ns(outlook.store, JOB, first=first, last=last) / 1e9,
            calm_until=last,
            slowed=story.slowed,
            wall_s=wall_s,
        )


def _finish(
    options: DemoOptions, script: Path, folder: Path, mark: str, say: Timeline, told: Told
) -> dict[str, Any]:
    """Run the reference and put the report together."""
    say("reference", "the same job once more, uninterrupted, under plain torchrun")
    reference = Reference(folder / "reference", _arguments(options, script), mark)
    with contextlib.closing(reference):
        reference.wait(REFERENCE_S, lambda step, loss: say("reference", f"step {step}, loss {loss:.3f}"))
        plain_s = reference.median_step_s(told.calm_until)
        return score.report(
            told.outcomes,
            params_hash=told.params_hash,
            reference_hash=reference.hash,
            steps=options.steps,
            wall_s=told.wall_s,
            overhead_ratio=told.median_step_s / plain_s if plain_s and told.median_step_s else None,
        )


def _tell(report_: dict[str, Any], told: Told, print_: Callable[[str], None]) -> None:
    lines = ["", *score.fault_table(told.outcomes), "", *score.stage_table(told.recoveries), ""]
    if told.slowed is not None:
        lines.append(
            f"slow node: asked for {SLOWDOWN:.2f}x, its compute took {told.slowed:.2f}x by its own spans"
        )
    if report_["overhead_ratio"] is not None:
        lines.append(
            f"undisturbed step: {told.median_step_s * 1e3:.0f} ms watched, "
            f"{report_['overhead_ratio']:.2f} times the reference's, hub and dashboard on the same cores"
        )
    same = "identical" if report_["identical"] else "DIFFERENT"
    lines += [
        f"parameters, broken and healed   {report_['params_hash'] or 'none'}",
        f"parameters, uninterrupted       {report_['reference_hash'] or 'none'}   {same}",
    ]
    for line in lines:
        print_(line)


def _linger(hub: LocalHub, print_: Callable[[str], None]) -> None:
    """Leave the dashboard up until a signal; that is the ordinary end, so it is no error."""
    print_(f"\ndashboard  {hub.dashboard}\nCtrl-C ends it.")
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(3600)


@contextlib.contextmanager
def work_folder(keep: Path | None) -> Iterator[Path]:
    """A folder for data and logs; a temporary one goes with the demo unless that failed by itself."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.absolute()
        return
    folder = Path(tempfile.mkdtemp(prefix="pulsetrain-demo-"))
    try:
        yield folder
    except PulsetrainError as error:
        raise type(error)(f"{error}; logs are in {folder}") from error
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
