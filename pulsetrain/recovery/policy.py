"""How far the controller may go by itself."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from pulsetrain.diagnostics.node_check import LEVELS


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Configuration of the controller: table ``[controller]``, environment ``PULSETRAIN_CONTROLLER_*``."""

    observe_only: bool = False
    """Say what would be done, as events of kind `would`, and do nothing. A person may still evict."""
    evictions_per_hour: int = 4
    """Nodes that the controller may evict by its own decision in any hour. Lost nodes do not count."""
    min_healthy_ratio: float = 0.5
    """Share of a job's known nodes that must stay. An eviction that would go below it waits for a person."""
    heartbeat_timeout_s: float = 2.5
    """A connected node that is silent for this long is lost if the ranks of all other nodes stand still too.

    Twice the longest silence that a node survived counts instead, if that is longer. So do two and a half
    times the longest `agent.heartbeat_s` of the job's nodes."""
    silent_node_s: float = 30.0
    """A node that is silent for this long is lost, whatever the other nodes do."""
    starting_silence_s: float = 15.0
    """The same before the first step of an attempt, and before the first world: machines are busy then.

    A node whose connection closes is lost as at any other time."""
    reconnect_grace_s: float = 1.0
    """A node whose connection closed is lost unless it is back within this time, or within 2.5 s while the
    ranks of other nodes train on. Where no node of the job is heard, all have `silent_node_s`."""
    settle_s: float = 0.5
    """A job forms when enough nodes joined and none joined for this long, so that rank order is stable."""
    adopt_timeout_s: float = 10.0
    """After a restart of the hub, how long to wait for all agents of a running attempt to report."""
    reply_timeout_s: float = 8.0
    """How long an agent may take to answer a command other than a launch."""
    start_timeout_s: float = 60.0
    """How long a launch may take, beside the time in which an agent goes on loading a checkpoint.

    That is seen by its processor time. A load that does not go on for this long has failed."""
    lost_state_wait_s: float = 300.0
    """How long a job that would begin anew waits for lost nodes that have its state in memory.

    Where it would only lose many steps, it waits for a tenth of their time if that is less. 0: not at all."""
    self_check_s: float = 0.3
    """Length of the self-check that every node runs before each relaunch."""
    arithmetic_check_s: float = 5.0
    """How long a node multiplies where a NaN suspects its arithmetic, at a stop or at the end of the job."""
    pair_timeout_s: float = 5.0
    """How long one round of the pairwise all-gather may take before its pair is given up.

    With GPUs it may take 20 s more: drivers and NCCL begin. Later rounds wait for 5 times the slowest pair
    that passed, and at least 2 s. A pair that was given up counts as failed only if it had three times as
    long as the slowest one that passed."""
    check_level: str = "light"
    """What the check before a relaunch looks for where more than one process is in doubt: light or full.

    light finds faulty nodes and links in 10 s, full also slow nodes in 2 minutes. With GPUs that do not
    answer they take up to 40 s and a minute more."""
    replay_s: float = 20.0
    """How long nodes train in each phase of a replay, where a fault that names nobody comes again and checks
    find nobody. 0: there is none."""
    replay_limit_s: float = 120.0
    """How long the command of `pulsetrain run --replay` may take. One that takes longer has failed."""
    replay_nodes: int = 0
    """How many nodes replay together. 0: two, or each by itself where there are fewer than four.

    A command that shares a model among N nodes needs a multiple of N, and as many groups as nodes in each."""
    link_check_mbit: float = 0.0
    """Mbit/s that each transfer takes at most where links are measured at a stop. 0 is no limit."""
    stepless_s: float = 30.0
    """Ranks that work for this long without a step count as running: their script reports no steps.

    So do those that work beside ranks that step, as actors beside a learner. A script that reported steps
    before a fault is given ten minutes to report the next one."""
    hang_patience_s: float = 45.0
    """How long a rank at fault must do nothing at all before the job is restarted.

    That is: no processor time, no byte read or written, no child that works, and no wait that ends by itself.
    A hang that cannot end by itself is acted on at once. A job that paused longer at the same place is given
    twice that time.
    """
    pause_patience_s: float = 600.0
    """The same for a rank that may well go on: it sleeps, waits for input, saves, evaluates or loads data."""
    standby_check_s: float = 600.0
    """How often standbys run the light check. They run it when they join and before a promotion too."""
    promotion_check_s: float = 9.0
    """How long the light check before a promotion may take, where the last one is older than
    `standby_check_s`. With GPUs that do not answer it takes up to 40 s more.

    One round is enough where all pass. 0: there is none, only the self-check."""
    probation_s: float = 600.0
    """How long a machine must be without trouble before it counts as a standby again.

    This holds for one that comes back after the controller evicted it, and for a standby under a cordon."""
    shrink_wait_s: float = 3.0
    """How long a job of --nnodes MIN:MAX waits for a standby before it goes on with fewer nodes.

    It waits as long for further nodes before it first begins with fewer than MAX."""
    survivor_shrink_wait_s: float = 0.5
    """The same where all healthy ranks have kept their processes, if that is shorter.

    To go on without the others and to grow again costs little then."""
    grow_after_s: float = 2.0
    """How long a shrunk job must train before it grows again.

    Each time it shrinks within a minute after it grew, this doubles, up to 10 minutes."""
    checkpoint_patience_s: float = 120.0
    """How long an eviction at a step boundary waits for a checkpoint that holds without the node."""
    survivor_wake_s: float = 3.0
    """How long a healthy rank may take to give up its attempt so that its process can go on in the next one.

    One that takes longer is killed and started anew. It holds for scripts that use pulsetrain.restartable.
    0: all ranks start anew after each fault."""
    no_progress_attempts: int = 3
    """Attempts in a row that end without one completed step, after which restarting is given up, unless a
    node is replaced then. One whose ranks worked for 10 minutes does not count. Evictions do not count. Lost
    nodes count where it is each time the same."""
    restart_wait_s: float = 1.0
    """How long to wait before a launch after the second fault in a row. It doubles with each further one.

    A fault after 5 new steps, or after `restart_progress_s`, is a first one: it never waits. Lost nodes count
    apart: from the second loss in a row of the same node, or from the third of any. 0: nobody waits."""
    longest_restart_wait_s: float = 60.0
    """The longest wait before a launch."""
    restart_progress_s: float = 60.0
    """How long an attempt must run so that the next fault counts as a first one."""
    update_within_s: float = 86400.0
    """How long an update of a program waits for a restart before it stops the job at a saved step."""
    update_steps: int = 10
    """New steps that an attempt must do with an update before the update counts as good.

    An attempt without steps must run for `restart_progress_s`."""
    update_attempts: int = 2
    """How many attempts may fail with an update before it is good. Then it is rolled back."""
    faults_of_a_node: int = 3
    """At which fault in a day a node is evicted, if there is a standby and no other node that trains was at
    fault half as often. To be lost before the first step counts. What ranks of several nodes ended with does
    not, nor that the kernel kills always the same rank because memory is short. 0: never for that."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_healthy_ratio <= 1:
            raise ValueError(f"min_healthy_ratio = {self.min_healthy_ratio}: allowed 0 to 1")
        at_least_0 = ("evictions_per_hour", "no_progress_attempts", "faults_of_a_node", "replay_nodes")
        silences = ("silent_node_s", "starting_silence_s", "hang_patience_s", "pause_patience_s")
        checked = ("arithmetic_check_s", "link_check_mbit", "replay_s", "replay_limit_s")
        periods = (
            "standby_check_s",
            "promotion_check_s",
            "probation_s",
            "checkpoint_patience_s",
            "restart_progress_s",
            "update_within_s",
        )
        waits = (
            "lost_state_wait_s",
            "restart_wait_s",
            "longest_restart_wait_s",
            "shrink_wait_s",
            "survivor_shrink_wait_s",
            "grow_after_s",
        )
        for name in (*checked, *at_least_0, *silences, *periods, *waits, "survivor_wake_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} = {getattr(self, name)}: allowed 0 or more")
        for name in ("update_steps", "update_attempts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: allowed 1 or more")
        if self.check_level not in LEVELS:
            raise ValueError(f"check_level = {self.check_level!r}: allowed {', '.join(LEVELS)}")


class EvictionBudget:
    """Counts automatic evictions in a sliding hour."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._times_s: deque[float] = deque()

    def refusal(self, *, now_s: float, known: int, healthy: int) -> str:
        """Why one more automatic eviction is not allowed, "" where it is.

        `known` counts the nodes of the job that are not gone, `healthy` those that would stay.
        """
        while self._times_s and now_s - self._times_s[0] > 3600:
            self._times_s.popleft()
        if len(self._times_s) >= self._policy.evictions_per_hour:
            return f"budget of {self._policy.evictions_per_hour} evictions an hour is used up"
        if healthy < known * self._policy.min_healthy_ratio:
            return f"only {healthy} of {known} nodes would stay; floor {self._policy.min_healthy_ratio:.0%}"
        return ""

    def spend(self, now_s: float) -> None:
        """Count one eviction."""
        self._times_s.append(now_s)

    def ages_s(self, now_s: float) -> list[float]:
        """How long ago the evictions that count were, the first one first."""
        return [now_s - time_s for time_s in self._times_s if now_s - time_s <= 3600]
