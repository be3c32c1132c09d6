"""What may be done with a whole job, what it would cost, and what is under way. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.models.time_use import price_sentence

WORDS = {
    "preempt": "Pre-empt the job",
    "resume": "Resume the job",
    "migrate": "Take the job off the node",
    "resize": "Change its devices",
}


def choices(job: JsonObject, node: str) -> list[str]:
    """What can be asked for now: keys of `WORDS`. `node` is the chosen one, "" for none."""
    move = job.get("move") or {}
    if move.get("what") not in (None, "update") or job.get("state") == "preempted":
        return ["resume"]
    if job.get("state") not in ("forming", "starting", "running", "suspending", "checking", "waiting"):
        return []
    return [
        "preempt",
        *(["migrate"] if node else []),
        *(["resize"] if job.get("state") == "running" else []),
    ]


def places(nodes: Sequence[JsonObject], job: str) -> list[str]:
    """Names of nodes on which a pre-empted job could go on: those that it has, and its standbys."""
    here = (n for n in nodes if n.get("job") == job and n.get("connected"))
    return sorted(str(n["node"]) for n in here if n.get("state") in ("active", "standby"))


def under_way(job: JsonObject) -> str:
    """What was asked for and is not over, "" for nothing.

    >>> move = {"what": "preempt", "node": "", "actor": "ann", "reason": "noon", "newer_than": 41}
    >>> under_way({"state": "running", "move": move})
    'ann pre-empts it: noon. It waits for a checkpoint of step 41 or later.'
    """
    move = job.get("move")
    if not move:
        return ""
    kinds = {"preempt": "pre-empts it", "update": "updates its program"}
    does = kinds.get(move["what"], f"takes it off {move['node']}")
    told = f"{move['actor']} {does}: {move['reason']}."
    if job.get("state") in ("preempting", "preempted"):
        return told
    return f"{told} It waits for a checkpoint of step {move['newer_than']} or later."


def cost(answer: JsonObject) -> list[str]:
    """What a move would mean, in sentences. `answer` is what the hub says of it."""
    if answer["why_not"]:
        return [f"The hub refuses: {answer['why_not']}."]
    if answer["what"] == "resume":
        on = f" on {', '.join(nodes)}" if (nodes := answer.get("on_nodes")) else ""
        waits = answer.get("waits_for") == "pool"
        return [
            *(["The job goes on once the pool has devices for it."] if waits else []),
            f"Nodes are checked. Then the job starts{on} from the newest step that every rank can get.",
        ]
    if answer["what"] == "resize":
        return [resize_sentence(answer), price_sentence(answer)]
    where = "Its ranks end and its agents stay. Its devices are free until somebody resumes it."
    if answer["what"] == "migrate":
        where = f"The job restarts with {answer['standby']} in the place of {answer['node']}."
    if answer["what"] == "preempt" and answer.get("process_dump") == "":
        return [where, dump_sentence(answer)]
    resume_step = answer["resume_step"]
    start = f"it would go on from step {resume_step}" if resume_step >= 0 else "it would begin anew"
    lines = [
        where,
        "It trains on until a checkpoint is there that is newer than the request, for a minute at most.",
        f"At once {start}, and {answer['lost_steps']} steps would be done again.",
        price_sentence(answer),
        dump_sentence(answer),
    ]
    return [line for line in lines if line]


def dump_sentence(answer: JsonObject) -> str:
    """Whether a job's processes are dumped, and why not. "" where an older hub does not say it.

    >>> dump_sentence({"process_dump": "processes are not dumped (no criu on a): it goes on from a step"})
    'Processes are not dumped (no criu on a): it goes on from a step.'
    """
    told = answer.get("process_dump")
    if told is None:
        return ""
    return (
        f"{told[:1].upper()}{told[1:]}." if told else "Its processes are dumped, and no step is done again."
    )


def asked_for(answer: JsonObject, reason: str) -> str:
    """What was asked for, once the hub has taken it up."""
    more = dump_sentence(answer) if answer["what"] == "preempt" else ""
    if answer.get("waits_for") == "pool":
        more = "It goes on once the pool has devices for it."
    return f"{WORDS[answer['what']]}: asked for, {reason}" + (f". {more}" if more else "")


def resize_sentence(answer: JsonObject) -> str:
    """What another number of devices means for a job.

    >>> answer = {"job": "gpt", "devices": 2, "nodes": 1, "how": "turns", "step_ratio": 4.0, "dry_run": True}
    >>> resize_sentence(answer)
    'gpt would use 2 devices. Its ranks would take turns on them. A step would take up to 4 times as long.'
    """
    dry = answer["dry_run"]
    head = f"{answer['job']} {'would use' if dry else 'uses'} {answer['devices']} devices."
    if answer["how"] == "nodes":
        would = "would run" if dry else "will run"
        return f"{head} It {would} on {answer['nodes']} nodes from a saved step on."
    if answer["how"] == "own":
        return f"{head} Each rank {'would have' if dry else 'has'} one of its own."
    ratio = f"{answer['step_ratio']:g}"
    took = "would take" if dry else "takes"
    turns = f"Its ranks {'would take' if dry else 'take'} turns on them."
    return f"{head} {turns} A step {took} up to {ratio} times as long."
