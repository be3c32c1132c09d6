"""What a terminal shows of the hub's status: jobs, nodes and alerts, with their age. Pure.

The clock is the hub's own: the time at which it answered, plus the age of that answer. So a clock that is
wrong on this machine changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.models.alerts import about, ordered_alerts
from pulsetrain.dashboard.models.answer import to_do
from pulsetrain.dashboard.models.attribution import Attribution, attribute, node_state
from pulsetrain.dashboard.models.overview import mfu_ratio
from pulsetrain.dashboard.models.states import JOB_STATES, NODE_STATES, job_state, look
from pulsetrain.dashboard.models.text import natural
from pulsetrain.dashboard.models.time_use import ettr_text
from pulsetrain.dashboard.pulse import AWAY_S
from pulsetrain.terminal.printable import printable

STALE_S = AWAY_S
"""Data that is older is stale: what it said is no longer shown as the state of a job."""
_GONE = ("evicted", "left", "lost")


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What the hub answered last, and how old that is. `problem` says why it does not answer, "" for none."""

    status: JsonObject
    alerts: Sequence[JsonObject] = ()
    incidents: Sequence[JsonObject] = ()
    age_s: float = 0.0
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Pending:
    """A hang that is named and not acted on. `left_s` is None where the job is not restarted for it."""

    rank: int
    since_ns: int
    act_at_ns: int | None
    left_s: float | None
    why: str


@dataclass(frozen=True, kw_only=True)
class NodeView:
    """One node. `state` is a key of `NODE_STATES`, or "no data"."""

    node: str
    state: str
    ranks: tuple[int, ...]
    heard_age_s: float
    reason: str


@dataclass(frozen=True, kw_only=True)
class AlertView:
    """One alert that is not resolved."""

    id: str
    job: str
    severity: str
    kind: str
    about: str
    summary: str
    since_ns: int
    acknowledged_by: str
    muted: bool


@dataclass(frozen=True, kw_only=True)
class SlowView:
    """A rank or node of the ranking. `compute_s` is None for a node, `slower_ratio` where nothing compares.

    `blamed` is "culprit" or "slow" if an open finding names it, else "".
    """

    name: str
    node: str
    compute_s: float | None
    slower_ratio: float | None
    blamed: str


@dataclass(frozen=True, kw_only=True)
class JobView:
    """One job. `since_ns` and `step_s` are 0, `step` and `attempt` -1 and `mfu` None where nobody knows.

    `state` is a key of `JOB_STATES`. It is "no_data" and `last_said` holds the sentence where the data is
    stale. `ettr` is the effective training time ratio in words, "" where nobody knows.
    """

    job: str
    state: str
    sentence: str
    since_ns: int
    to_do: str
    last_said: str
    runs_here: bool
    step: int
    attempt: int
    world_size: int
    step_s: float
    mfu: float | None
    recoveries: int
    ettr: str
    pending: Pending | None
    slowest_ranks: tuple[SlowView, ...]
    slowest_nodes: tuple[SlowView, ...]
    slowest_steps: int
    nodes: tuple[NodeView, ...]


@dataclass(frozen=True, kw_only=True)
class View:
    """Everything on one screen. `now_ns` is the hub's clock, 0 where it does not tell."""

    hub: str
    now_ns: int
    age_s: float
    stale: bool
    problem: str
    observe_only: bool
    jobs: tuple[JobView, ...]
    alerts: tuple[AlertView, ...]

    def as_json(self) -> JsonObject:
        """The same as one JSON object."""
        return asdict(self)

    def only(self, name: str) -> View:
        """The view of one job. "" is all. A job that the hub does not know has no data."""
        if not name:
            return self
        alerts = tuple(alert for alert in self.alerts if alert.job in (name, ""))
        return replace(self, jobs=(self.job(name) or _unknown(name),), alerts=alerts)

    def job(self, name: str) -> JobView | None:
        """The job of that name, None where there is none."""
        return next((job for job in self.jobs if job.job == name), None)


def view(answers: Answers, *, here_ns: int) -> View:
    """What to show of what the hub answered. Jobs that need a person come first, past jobs last.

    `here_ns` is this machine's clock, for a hub that does not tell its own.
    """
    hub = answers.status.get("hub") or {}
    now_ns = int(hub.get("now_ns") or 0)
    now_ns = now_ns + int(answers.age_s * 1e9) if now_ns else here_ns
    stale = answers.age_s > STALE_S
    known = [*answers.status.get("jobs", []), *answers.status.get("past_jobs", [])]
    jobs = [_job(job, answers, now_ns, stale=stale) for job in known]
    return View(
        hub=str(hub.get("url", "")),
        now_ns=now_ns,
        age_s=round(answers.age_s, 1),
        stale=stale,
        problem=printable(answers.problem),
        observe_only=bool(hub.get("observe_only")),
        jobs=tuple(sorted(jobs, key=_urgency)),
        alerts=tuple(_alert(a) for a in ordered_alerts(answers.alerts) if a.get("state") != "resolved"),
    )


def _urgency(job: JobView) -> tuple[bool, int]:
    """A sort key: what needs a person first. Past jobs keep the hub's order, the newest first."""
    return not job.runs_here, -look(job.state, JOB_STATES).urgency * job.runs_here


def _job(job: JsonObject, answers: Answers, now_ns: int, *, stale: bool) -> JobView:
    verdict = job.get("verdict") or {}
    sentence = printable(verdict.get("sentence") or "No verdict yet: the hub has not judged this job.")
    blame, runs_here = attribute(job.get("findings", [])), job.get("state") != "past"
    old = stale and runs_here
    ranking = job.get("slowest") or {}
    return JobView(
        job=printable(job["job"]),
        state="no_data" if old else job_state(job),
        sentence=f"No data for {answers.age_s:.0f} s, because the hub does not answer." if old else sentence,
        since_ns=int(verdict.get("since_ns") or 0),
        to_do="Check the hub. Jobs keep training while it is away." if old else _to_do(job, answers),
        last_said=sentence if old else "",
        runs_here=runs_here,
        step=int(job.get("step", -1)),
        attempt=int(job.get("attempt", -1)),
        world_size=int(job.get("world_size") or 0),
        step_s=float(job.get("median_step_s") or 0.0),
        mfu=mfu_ratio(job),
        recoveries=len(job.get("recoveries", ())),
        ettr=ettr_text(job),
        pending=_pending(job.get("pending_hang"), now_ns),
        slowest_ranks=tuple(_slow_rank(row, blame) for row in ranking.get("ranks", ())),
        slowest_nodes=tuple(_slow_node(row, blame) for row in ranking.get("nodes", ())),
        slowest_steps=int(ranking.get("steps") or 0),
        nodes=_nodes(job.get("nodes", ()), blame, answers.age_s, stale=old),
    )


def _unknown(name: str) -> JobView:
    """A job that is asked for, of a hub that does not know it: perhaps it has just started anew."""
    answers = Answers(status={})
    sentence = "The hub does not know this job. No agent of it has connected."
    verdict = {"state": "no_data", "sentence": sentence}
    return _job({"job": name, "verdict": verdict}, answers, 0, stale=False)


def _to_do(job: JsonObject, answers: Answers) -> str:
    return printable(to_do(job, answers.incidents))


def _pending(hang: JsonObject | None, now_ns: int) -> Pending | None:
    if hang is None:
        return None
    act_at_ns = hang.get("act_at_ns")
    return Pending(
        rank=int(hang["rank"]),
        since_ns=int(hang["since_ns"]),
        act_at_ns=act_at_ns,
        left_s=None if act_at_ns is None else max(0.0, (act_at_ns - now_ns) / 1e9),
        why=printable(hang.get("why", "")),
    )


def _slow_rank(row: JsonObject, blame: Attribution) -> SlowView:
    return SlowView(
        name=f"rank {row['rank']}",
        node=printable(row["node"]),
        compute_s=row["compute_s"],
        slower_ratio=row["slower_ratio"],
        blamed=blame.ranks.get(row["rank"], "") or blame.nodes.get(row["node"], ""),
    )


def _slow_node(row: JsonObject, blame: Attribution) -> SlowView:
    name = printable(row["node"])
    return SlowView(
        name=name,
        node=name,
        compute_s=None,
        slower_ratio=row["slower_ratio"],
        blamed=blame.nodes.get(row["node"], ""),
    )


def _nodes(
    nodes: Sequence[JsonObject], blame: Attribution, age_s: float, *, stale: bool
) -> tuple[NodeView, ...]:
    """The nodes, those that need a person first, then in the natural order of their names.

    Of stale data only what stays as it is counts: a node that is gone.
    """
    views = [
        NodeView(
            node=printable(node["node"]),
            state="no data" if stale and node.get("state") not in _GONE else node_state(node, blame),
            ranks=tuple(node.get("ranks") or ()),
            heard_age_s=round(float(node.get("last_heartbeat_age_s") or 0.0) + age_s, 1),
            reason=printable(node.get("reason", "")),
        )
        for node in nodes
    ]
    return tuple(sorted(views, key=lambda n: (-look(n.state, NODE_STATES).urgency, natural(n.node))))


def _alert(alert: JsonObject) -> AlertView:
    return AlertView(
        id=str(alert["id"]),
        job=printable(alert.get("job", "")),
        severity=str(alert.get("severity", "")),
        kind=printable(alert.get("kind", "")),
        about=printable(about(alert)),
        summary=printable(alert.get("summary", "")),
        since_ns=int(alert.get("since_ns") or 0),
        acknowledged_by=printable(alert.get("acknowledged_by") or ""),
        muted=bool(alert.get("muted")),
    )
