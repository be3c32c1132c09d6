"""The answer in five seconds: what is wrong, since when, how sure, what is being done, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.models.text import ago, clock, duration
from pulsetrain.dashboard.models.waits import detail_of, names, waits

RECENT_NS = 600 * 10**9
CONTROLLER_KINDS = (
    "would",
    "recovery",
    "evict",
    "eviction_refused",
    "eviction_deferred",
    "cordon",
    "uncordon",
    "links_suspected",
    "link_check",
    "link_check_skipped",
    "arithmetic_suspected",
    "arithmetic_check",
    "replay_started",
    "replay",
    "replay_skipped",
    "waiting",
    "standby_promoted",
    "shrink",
    "grow",
    "preempted",
)
"""Events that say what the controller did, would do or waits for."""
MOST_EVENTS = 40
_ACTS = {
    "suspending": "It ends the ranks now. Their state stays in the arenas of the nodes that are left.",
    "checking": "It checks every node now.",
    "waiting": "It waits for a node to take the place of a lost one.",
    "preempting": "It ends the ranks now, because somebody asked for it.",
    "preempted": "It leaves the job stopped until somebody resumes it.",
}
_WITHOUT_A_FINDING = {
    "failed": "Read the last output of its ranks, then start the job again.",
    "forming": "Start the agents of the nodes that are missing.",
    "no_data": "Check that its agents run and reach the hub.",
    "preempted": "Resume it on the page Nodes once its devices may be used.",
    "past": "Start its agents, if it is meant to run.",
    "waiting": "Start an agent on another node.",
}
_SLOW = ("straggler", "fail_slow", "mfu_decay", "stage_imbalance", "sequence_imbalance", "data_stall")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """`confidence` is None where nothing is accused. `links` are (words, address), the most useful first."""

    confidence: float | None
    controller: str
    to_do: str
    links: tuple[tuple[str, str], ...]


def answer(
    job: JsonObject,
    incidents: Sequence[JsonObject],
    events: Sequence[JsonObject],
    *,
    observe_only: bool,
    now_ns: int,
) -> Answer:
    """The answer for a job of the hub's status. `events` are of `CONTROLLER_KINDS`, newest first."""
    worst = worst_finding(job)
    return Answer(
        confidence=None if worst is None else float(worst["confidence"]),
        controller=_controller(job, worst, events, observe_only=observe_only, now_ns=now_ns),
        to_do=to_do(job, incidents),
        links=tuple(_links(job, worst)),
    )


def worst_finding(job: JsonObject) -> JsonObject | None:
    """The first open finding of a job that is more than information. None where nothing is accused."""
    return next((f for f in job.get("findings", []) if f["severity"] != "info"), None)


def to_do(job: JsonObject, incidents: Sequence[JsonObject]) -> str:
    """What a person should do about a job of the hub's status.

    With a finding it is the action of the incident about it, else of the newest open incident of the job,
    else of its newest one. Without a finding it follows from the job's state.
    """
    verdict, worst = str((job.get("verdict") or {}).get("state", "")), worst_finding(job)
    if verdict in ("finished", "ended"):
        return "Nothing."
    if worst is None:
        state = str(job.get("state", ""))
        named = state if state == "waiting" or (state, verdict) == ("past", "no_data") else verdict
        return _WITHOUT_A_FINDING.get(named, "Nothing.")
    of_job = [i for i in incidents if i.get("job") == job.get("job")]
    about = f"{worst['subject_type']} {worst['subject']}"
    best = max(of_job, key=lambda incident: _closeness(incident, worst, about), default=None)
    if best is None:
        return "Look at the evidence."
    return f"{best['suggested_action']}{'' if best['root'] == about else _blamed(best)}"


def _closeness(incident: JsonObject, finding: JsonObject, about: str) -> tuple[bool, bool, bool]:
    """How much an incident has to do with an open finding about `about`. What is over explains it last."""
    is_root, is_open = incident["root"] == about, incident.get("state") != "over"
    holds = any((e["kind"], e["subject"]) == (finding["kind"], about) for e in incident.get("timeline") or ())
    return is_open and (is_root or holds), is_root, is_open


def _blamed(incident: JsonObject) -> str:
    """To whom an incident is put down, and how sure that is."""
    root = incident["root"]
    hypotheses = incident.get("hypotheses") or ()
    sure = next((f", {float(h['confidence']):.0%} sure" for h in hypotheses if h["root"] == root), "")
    return f" The incident is put down to {root}{sure}."


def _controller(
    job: JsonObject,
    worst: JsonObject | None,
    events: Sequence[JsonObject],
    *,
    observe_only: bool,
    now_ns: int,
) -> str:
    """What the controller does, waits for, would do or did."""
    state = str(job.get("state", ""))
    if state == "past":
        return "The job does not run on this hub, so nothing is done."
    if observe_only:
        return _would(events, now_ns)
    if state in _ACTS:
        return _replays(job, events, now_ns) if state == "checking" else _ACTS[state]
    if pending := job.get("pending_hang"):
        return _pending(pending, now_ns)
    said = waits(job, events, now_ns)
    if not said:
        recent = (_did(event, now_ns) for event in events if now_ns - event["ts_ns"] < RECENT_NS)
        said = [did for did in recent if did][:1]
    if worst is not None and worst["kind"] in _SLOW:
        said = ["It leaves slow machines to a person.", *said]
    return " ".join(said) or "Nothing needs to be done."


def _replays(job: JsonObject, events: Sequence[JsonObject], now_ns: int) -> str:
    """What it does while it checks nodes. `events`: newest first."""
    last = next((event for event in events if event["kind"] in ("replay_started", "replay")), None)
    if last is None or last["kind"] == "replay" or last["ts_ns"] < int(job.get("since_ns", 0)):
        return _ACTS["checking"]
    nodes, since = len(detail_of(last).get("nodes") or []), ago(last["ts_ns"], now_ns)
    return f"It replays training on {nodes} nodes to find which of them makes it fail. It began {since}."


def _would(events: Sequence[JsonObject], now_ns: int) -> str:
    last = next((e for e in events if e["kind"] == "would"), None)
    if last is None:
        return "It only observes. It would not have acted so far."
    where = last["node"] or (f"rank {last['rank']}" if last["rank"] >= 0 else "the job")
    reason = detail_of(last).get("reason", "")
    return f"It only observes. {ago(last['ts_ns'], now_ns)} it would have acted on {where}: {reason}."


def _resumed(detail: JsonObject) -> str:
    """From where a job went on.

    >>> _resumed({"resumed_step": 78}), _resumed({"resumed_step": -1, "lost_steps": 81})
    ('from step 78', 'from its beginning, with 81 steps lost')
    """
    step = detail.get("resumed_step", "?")
    return (
        f"from step {step}"
        if step != -1
        else f"from its beginning, with {detail.get('lost_steps', '?')} steps lost"
    )


def _pending(pending: JsonObject, now_ns: int) -> str:
    act_at = pending.get("act_at_ns")
    if act_at is None:
        return str(pending["why"])
    left_s = max(0.0, (act_at - now_ns) / 1e9)
    left = f"{left_s:.0f} s" if left_s < 300 else f"{left_s / 60:.0f} min"
    return f"{pending['why']} That is in {left}, at {clock(act_at)[-8:]} UTC."


def decision_cost(plan: JsonObject, now_ns: int) -> list[str]:
    """What a decision on a hang would mean, in sentences. `plan` has them and what the hub said of it."""
    if plan["why_not"]:
        return [f"The hub refuses: {plan['why_not']}."]
    hang = plan["hang"]
    if hang is None:
        return ["The hang is over. Nothing is pending."] if not plan["can_do"] else _held(plan["span"])
    lasts = duration(max(0, now_ns - int(hang["since_ns"])))
    where = f"Rank {hang['rank']} stands still for {lasts}."
    if plan["decision"] == "wait":
        return [where, *_held(plan["span"])]
    return [
        where,
        "All ranks are ended and started again from the newest step that every rank can get.",
        "Without a checkpoint the job begins anew.",
    ]


def _held(span: str) -> list[str]:
    return [f"Nothing restarts the job for a hang for {span}, also not one that is certain."]


def _did(event: JsonObject, now_ns: int) -> str:
    detail, when = detail_of(event), ago(event["ts_ns"], now_ns)
    match event["kind"]:
        case "recovery":
            took = duration(int(detail.get("total_ns", 0)))
            if detail.get("cause") == "preemption" and int(detail.get("from_step", 0)) < 0:
                return f"It began the job {when}, which had been held back before its first step for {took}."
            what = f"{detail.get('cause', 'fault')} of {detail.get('culprit') or event['node'] or 'the job'}"
            return f"It recovered the job {when}: {what}, {took}, {_resumed(detail)}."
        case "evict":
            return f"It evicted {event['node']} {when}: {detail.get('reason', 'no reason given')}."
        case "eviction_refused":
            return f"It did not evict {event['node']} {when}: {detail.get('why_not', '')}."
        case "cordon":
            why = detail.get("reason", "")
            return f"It cordoned {event['node']} {when}, so it takes no other node's place: {why}."
        case "uncordon":
            return f"It ended the cordon of {event['node']} {when}."
        case "link_check":
            return f"It measured links {when}: {_links_named(detail)}."
        case "link_check_skipped":
            return f"It could not measure links {when}: {detail.get('reason', '')}."
        case "arithmetic_check":
            wrong = detail.get("wrong") or {}
            said = f"wrong products on {names(list(wrong))}" if wrong else "no wrong product"
            return f"It checked the arithmetic of {names(detail.get('nodes') or [])} {when}: {said}."
        case "replay":
            return f"It replayed training in groups of nodes {when}: {_replayed(detail)}."
        case "replay_skipped":
            return f"It could not replay training {when}: {detail.get('reason', '')}."
        case "standby_promoted":
            return f"It gave the place of a lost node to {event['node']} {when}."
        case "shrink" | "grow":
            return f"It went from {detail.get('from', '?')} to {detail.get('to', '?')} nodes {when}."
        case "preempted":
            step = detail.get("step", "?")
            where = "before its first step" if step == -1 else f"at step {step}"
            return f"It stopped the job {when} {where}, as it was asked to."
        case "waiting":
            return f"It waited for {detail.get('missing_nodes', 'a')} node(s) {when}."
    return ""


def _replayed(detail: JsonObject) -> str:
    """What a replay said."""
    named = list(detail.get("named") or {})
    return f"it fails with {names(named)}" if named else str(detail.get("reason") or "nobody is named")


def _links_named(detail: JsonObject) -> str:
    """What the rounds over links said."""
    named = [f"{culprit.get('kind')} {culprit.get('name')}" for culprit in detail.get("named") or []]
    return names(named) if named else str(detail.get("reason") or "nothing is wrong with them")


def _links(job: JsonObject, worst: JsonObject | None) -> list[tuple[str, str]]:
    name = str(job["job"])

    def to(words: str, page: str, **params: object) -> tuple[str, str]:
        return (words, f"{page}?{urlencode({'job': name, **params})}")

    if worst is None:
        return [to("heatmap", "heatmap"), to("topology", "topology"), to("events", "events")]
    links = [to("incident", "incidents")]
    if worst["subject_type"] == "rank" and str(worst["subject"]).isdigit():
        rank = worst["subject"]
        links += [to(f"rank {rank}", "rank", rank=rank), to("its logs", "logs", ranks=rank)]
        links += [to("its timeline", "timeline", ranks=rank)]
    elif worst["subject_type"] == "node":
        links += [to(str(worst["subject"]), "node", node=worst["subject"])]
        links += [to("its logs", "logs", node=worst["subject"])]
    links.append(to("stacks", "stacks") if worst["kind"] == "hang" else to("heatmap", "heatmap"))
    return [*links, to("topology", "topology")]
