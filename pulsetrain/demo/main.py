"""`pulsetrain demo`: starts hub and nodes, runs the scenario, prints the report, leaves nothing behind."""

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

from pulsetrain.agent.local_hub import LocalHub, local_hub
from pulsetrain.core.errors import PulsetrainError, UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.core.whole_file import write_whole
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
                f"--steps {self.steps}: at least {MIN_STEPS}, so that there is time for three faults"
            )
        if self.report is not None and self.report.is_dir():
            raise UsageError(f"--report {self.report}: is a folder; give a file")
        if self.report is not None and not self.report.exists():
            if not os.access(self.report.absolute().parent, os.W_OK):
                raise UsageError(f"--report {self.report}: its folder is missing or cannot be written")
        elif self.report is not None and not os.access(self.report, os.W_OK):
            raise UsageError(f"--report {self.report}: this file is there and cannot be written")
        if self.keep is not None and self.keep.exists() and not _is_empty_folder(self.keep):
            raise UsageError(f"--keep {self.keep}: must be a new or an empty folder")


def _is_empty_folder(path: Path) -> bool:
    try:
        return not any(path.iterdir())
    except OSError:
        return False


def usual_steps(cores: int) -> int:
    """Steps that leave the faults their time: the more cores, the shorter a step.

    >>> usual_steps(2), usual_steps(16)
    (120, 720)
    """
    return 120 * min(max(cores // 2, 1), 6)


class Timeline:
    """Prints one line for each event: seconds since the start, who, what."""

    def __init__(self, print_: Callable[[str], None]) -> None:
        self._print, self._began_s = print_, time.monotonic()

    def __call__(self, who: str, what: str) -> None:
        """Print one line."""
        self._print(f"{time.monotonic() - self._began_s:7.1f} s  {who:<10}  {what}")


def run(
    options: DemoOptions,
    print_: Callable[[str], None],
    publish: Callable[[score.Report], None] | None = None,
) -> int:
    """Run the demo; 0 where every fault was named and the parameters are the reference's, else 1.

    `print_` gets each line for people, `publish` the report. Raises `UsageError` where the example is
    missing, `PulsetrainError` where the job does not finish, `KeyboardInterrupt` on SIGINT, SIGTERM and
    SIGHUP. However it ends, no process of it is left.
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
        run_ = DemoRun(options=options, script=script, folder=folder, mark=mark, say=say)
        watched = run_.train_watched(hub)
        report_ = run_.train_reference(watched)
        _print_report(report_, watched, print_)
        if publish is not None:
            publish(report_)
        if options.report:
            write_whole(options.report, json.dumps(report_, indent=1).encode() + b"\n")
        if not options.exit:
            _keep_dashboard(hub, print_)
        return 0 if score.passed(report_, FAULTS) else 1


@dataclass(frozen=True, kw_only=True)
class WatchedRun:
    """What the watched run left to report. `slowed` is the measured slowdown of the slow node."""

    outcomes: list[score.Outcome]
    recoveries: list[JsonObject]
    params_hash: str
    median_step_s: float
    calm_until: int
    slowed: float | None
    wall_s: float


@dataclass(frozen=True, kw_only=True)
class DemoRun:
    """The two trainings of a demo: one with faults under Pulsetrain, one uninterrupted under torchrun.

    Processes carry `mark` in their environment.
    """

    options: DemoOptions
    script: Path
    folder: Path
    mark: str
    say: Timeline

    @property
    def command(self) -> list[str]:
        """The script and its arguments, the same for both trainings."""
        shape = ["--tp", "2", "--pp", "2", "--dp", "2", "--device", "cpu"]
        return [
            str(self.script),
            *shape,
            "--steps",
            str(self.options.steps),
            "--seed",
            str(self.options.seed),
        ]

    def train_watched(self, hub: LocalHub) -> WatchedRun:
        """Train on five nodes with three faults. Raises `PulsetrainError` where the job does not finish."""
        hash_file = self.folder / "hash"
        with contextlib.ExitStack() as stack:
            monitor = JobMonitor.of_hub(hub.address, JOB, self.say)
            stack.callback(monitor.close)
            nodes = Cluster(
                self.folder, hub.address, [*self.command, "--params-hash-out", str(hash_file)], self.mark
            )
            stack.callback(nodes.close)
            scenario = Scenario(
                cluster=nodes, monitor=monitor, job=JOB, steps=self.options.steps, say=self.say
            )
            began_s = time.monotonic()
            scenario.run()
            wall_s = time.monotonic() - began_s
            first, last = scenario.calm
            return WatchedRun(
                outcomes=scenario.outcomes,
                recoveries=monitor.recoveries,
                params_hash=cluster.read_hash(hash_file),
                median_step_s=queries.median_step_ns(monitor.store, JOB, first=first, last=last) / 1e9,
                calm_until=last,
                slowed=scenario.slowed,
                wall_s=wall_s,
            )

    def train_reference(self, watched: WatchedRun) -> score.Report:
        """Train uninterrupted, and put the report together."""
        self.say("reference", "the same job once more, uninterrupted, under plain torchrun")
        reference = Reference(self.folder / "reference", self.command, self.mark)
        with contextlib.closing(reference):
            reference.wait(
                REFERENCE_S, lambda step, loss: self.say("reference", f"step {step}, loss {loss:.3f}")
            )
            plain_s = reference.median_step_s(watched.calm_until)
            return score.report(
                watched.outcomes,
                params_hash=watched.params_hash,
                reference_hash=reference.hash,
                steps=self.options.steps,
                wall_s=watched.wall_s,
                overhead_ratio=watched.median_step_s / plain_s if plain_s and watched.median_step_s else None,
            )


def _print_report(report_: score.Report, watched: WatchedRun, print_: Callable[[str], None]) -> None:
    lines = ["", *score.fault_table(watched.outcomes), "", *score.stage_table(watched.recoveries), ""]
    if watched.slowed is not None:
        lines.append(
            f"slow node: asked for {SLOWDOWN:.2f}x, its compute took {watched.slowed:.2f}x by its own spans"
        )
    if report_["overhead_ratio"] is not None:
        lines.append(
            f"undisturbed step: {watched.median_step_s * 1e3:.0f} ms watched, "
            f"{report_['overhead_ratio']:.2f} times the reference's, hub and dashboard on the same cores"
        )
    same = "identical" if report_["identical"] else "DIFFERENT"
    lines += [
        f"parameters, broken and healed   {report_['params_hash'] or 'none'}",
        f"parameters, uninterrupted       {report_['reference_hash'] or 'none'}   {same}",
    ]
    for line in lines:
        print_(line)


def _keep_dashboard(hub: LocalHub, print_: Callable[[str], None]) -> None:
    """Leave the dashboard up until a signal, which is no error."""
    print_(f"\ndashboard  {hub.dashboard}\nCtrl-C ends it.")
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(3600)


@contextlib.contextmanager
def work_folder(keep: Path | None) -> Iterator[Path]:
    """A folder for data and logs. A temporary one is removed at the end, unless the demo failed by itself."""
    if keep is not None:
        try:
            keep.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--keep {keep}: {error.strerror}") from error
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
