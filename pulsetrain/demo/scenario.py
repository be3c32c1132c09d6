"""The demo's scenario: train, slow a node, stop a rank, kill a node, finish. Each fault is waited for."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from pulsetrain.core.errors import PulsetrainError
from pulsetrain.demo.cluster import NODES, RANKS_PER_NODE, STANDBY, Cluster
from pulsetrain.demo.job_monitor import JobMonitor, JobStatus, Say
from pulsetrain.demo.score import Injection, Outcome, judge
from pulsetrain.faults import outside
from pulsetrain.faults.throttle import Throttle
from pulsetrain.stream.queries import analysis
from pulsetrain.stream.queries import demo as queries
from pulsetrain.stream.queries.queryable import AttemptSteps

SLOW_NODE, STOPPED_NODE, KILLED_NODE = NODES[1], NODES[2], NODES[3]
SLOWDOWN = 1.5
CALM_STEPS = 25  # before the first fault, so that ordinary speed is known
GAP_STEPS, GAP_S = 8, 2.0  # at least so much between a recovery and the next fault
SLOW_STEPS = (12, 30)
"""The slow node stays slow for at least so many steps, and for at most so many if no finding names it."""
SLOW_S = 15.0
"""The slow node stays slow for at least that long where no finding names it."""
RECOVERY_S = 60.0
START_S = 120.0
STALL_S = 120.0
MIN_STEPS = 100

SLOW_KINDS = frozenset({"straggler", "fail_slow"})
STOP_KINDS = frozenset({"hang"})
DEATH_KINDS = frozenset({"node_lost", "crash"})


@dataclass(kw_only=True)
class Scenario:
    """Injects the faults one by one and keeps the outcome of each."""

    cluster: Cluster
    monitor: JobMonitor
    job: str
    steps: int
    say: Say
    outcomes: list[Outcome] = field(default_factory=list)
    calm: tuple[int, int] = (0, 0)
    slowed: float | None = None
    finishing: bool = False

    @property
    def status(self) -> JobStatus:
        """What the hub last said of the job."""
        return self.monitor.status

    def run(self) -> None:
        """From the first node to the last step. Raises `PulsetrainError` where the job does not get there."""
        self.start()
        self._reach(CALM_STEPS, "train undisturbed")
        self.calm = (5, self.status.step)
        for fault in (self.slow_a_node, self.stop_a_rank, self.kill_a_node):
            self.outcomes.append(fault())
            self._reach(self.status.step + GAP_STEPS, "train on after the fault", GAP_S)
        self.finishing = True
        self._wait(lambda: self.status.state == "finished", self.steps * 2.0 + STALL_S, "finish")
        self._check_job()
        self.cluster.await_end()
        self.monitor.poll()

    def start(self) -> None:
        """Start four nodes that train and a standby, and wait for the first step."""
        for number, node in enumerate(NODES):
            self.cluster.start(node, f"127.0.0.{number + 2}")
        self.cluster.start(STANDBY, f"127.0.0.{len(NODES) + 2}", standby=True)
        self._wait(lambda: self.status.step >= 0, START_S, "complete its first step")

    def slow_a_node(self) -> Outcome:
        """Throttle the processes of one node until a finding names it, or for `SLOW_STEPS` at most."""
        ranks = outside.ranks_below(self.cluster.pid(SLOW_NODE))
        accepted = {("node", SLOW_NODE), *(("rank", str(r)) for r in ranks)}
        others = [outside.ranks_below(self.cluster.pid(node)) for node in NODES if node != SLOW_NODE]
        peers = [pid for node in others for pid in node.values()]
        throttle = Throttle(list(ranks.values()), SLOWDOWN, peers=peers)
        with throttle:
            injection = self._injection("slow_node", SLOW_NODE, SLOW_KINDS, accepted)
            self.say("fault", f"the ranks of {SLOW_NODE} are throttled to compute {SLOWDOWN} times slower")
            least, end = (injection.step + steps for steps in SLOW_STEPS)
            long_enough_s = time.monotonic() + SLOW_S
            self._wait(
                lambda: (
                    (self.status.step >= end and time.monotonic() >= long_enough_s)
                    or (self.status.step >= least and self._named(injection))
                ),
                STALL_S,
                "run with a slow node",
            )
            if not throttle.running:
                raise PulsetrainError(f"{SLOW_NODE} was not throttled to the end")
        self.say("fault", f"{SLOW_NODE} runs at full speed again")
        self.slowed = self._measured_slowdown(injection, ranks)
        until_ns = time.time_ns()
        return judge(
            injection, self.monitor.findings, until_ns=until_ns, resumed_ns=injection.at_ns, lost_steps=0
        )

    def stop_a_rank(self) -> Outcome:
        """Send SIGSTOP to the last rank of one node."""
        ranks = outside.ranks_below(self.cluster.pid(STOPPED_NODE))
        rank = max(ranks)
        injection = self._injection("stopped_rank", f"rank {rank}", STOP_KINDS, {("rank", str(rank))})
        self.say("fault", f"SIGSTOP to rank {rank} on {STOPPED_NODE} (pid {ranks[rank]})")
        outside.stop(ranks[rank])
        try:
            return self._recovered(injection)
        finally:
            outside.resume([ranks[rank]])

    def kill_a_node(self) -> Outcome:
        """Send SIGKILL to one node's agent and everything below it."""
        injection = self._injection("killed_node", KILLED_NODE, DEATH_KINDS, {("node", KILLED_NODE)})
        self.say("fault", f"SIGKILL to all of {KILLED_NODE}: its agent and {RANKS_PER_NODE} ranks")
        self.cluster.kill(KILLED_NODE)
        return self._recovered(injection)

    def _injection(
        self, kind: str, injected: str, kinds: frozenset[str], accepted: set[tuple[str, str]]
    ) -> Injection:
        """The fault that is about to be injected."""
        return Injection(
            kind=kind,
            injected=injected,
            kinds=kinds,
            accepted=frozenset(accepted),
            at_ns=time.time_ns(),
            step=self.status.step,
            attempt=self.status.attempt,
        )

    def _named(self, injection: Injection) -> bool:
        return any(
            f.kind in injection.kinds and f.subject in injection.accepted and f.seen_ns >= injection.at_ns
            for f in self.monitor.findings
        )

    def _recovered(self, injection: Injection) -> Outcome:
        """Wait until the job trains again; the outcome of the injection."""
        before = len(self.monitor.recoveries)
        self._wait(lambda: len(self.monitor.recoveries) > before, RECOVERY_S, "train again")
        recovery = self.monitor.recoveries[-1]
        last = queries.last_step(self.monitor.store, self.job, injection.attempt)
        return judge(
            injection,
            self.monitor.findings,
            until_ns=time.time_ns(),
            resumed_ns=int(recovery["ts_ns"]),
            lost_steps=max(0, last - int(recovery["resumed_step"])),
        )

    def _measured_slowdown(self, injection: Injection, ranks: Collection[int]) -> float | None:
        """How many times longer than before the throttled ranks computed, relative to the others.

        None where the hub does not have the rows.
        """
        now = self.status.step
        try:
            before = self._compute(injection.attempt, self.calm[0], injection.step)
            during = self._compute(injection.attempt, injection.step + 1, now)
        except PulsetrainError:
            return None
        ratios = {r: during[r] / before[r] for r in before.keys() & during.keys() if before[r] > 0}
        slow = [v for r, v in ratios.items() if r in ranks]
        rest = [v for r, v in ratios.items() if r not in ranks]
        return statistics.mean(slow) / statistics.mean(rest) if slow and rest else None

    def _compute(self, attempt: int, since: int, until: int) -> dict[int, float]:
        """Median time that each rank computed in a step, net of communication, in nanoseconds."""
        rows = analysis.step_parts(
            self.monitor.store,
            AttemptSteps(job=self.job, attempt=attempt, first=since, last=until),
            compute=("forward", "backward", "optimizer"),
            communication=("all_reduce", "send", "recv"),
        ).to_pylist()
        times: dict[int, list[float]] = {}
        for row in rows:
            times.setdefault(int(row["rank"]), []).append(float(row["compute"]))
        return {rank: statistics.median(values) for rank, values in times.items()}

    def _reach(self, step: int, what: str, least_s: float = 0.0) -> None:
        """Wait until the job has completed `step` and runs, but at least `least_s`."""
        from_s = time.monotonic() + least_s
        self._wait(
            lambda: (
                self.status.step >= step and self.status.state == "running" and time.monotonic() >= from_s
            ),
            STALL_S,
            what,
            final=step,
        )

    def _wait(
        self, until: Callable[[], bool], timeout_s: float, what: str, *, final: int | None = None
    ) -> None:
        if not self.monitor.wait(until, timeout_s, self._check_alive):
            where = f"step {self.status.step}, {self.status.state or 'no state'}"
            target = "" if final is None else f" to step {final}"
            raise PulsetrainError(f"the job did not {what}{target} within {timeout_s:g} s ({where})")

    def _check_alive(self) -> None:
        """Raises `PulsetrainError` where an agent or the job has ended too early."""
        if self.status.state not in ("finished", "failed"):
            self.cluster.check()
        self._check_job()

    def _check_job(self) -> None:
        if self.status.state == "failed":
            raise PulsetrainError(f"the job failed: {self.status.failure}")
        if self.status.state == "finished" and not self.finishing:
            raise PulsetrainError(f"the job ended before the last fault: give more than --steps {self.steps}")
