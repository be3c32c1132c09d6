"""What may be done with a whole job, what it would cost, and what is under way. Pure."""

from __future__ import annotations

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.models.time_use import price_sentence

WORDS = {"preempt": "Pre-empt the job", "resume": "Resume the job", "migrate": "Take the job off the node"}


def choices(job: JsonObject, node: str) -> list[str]:
    """What can be asked for now: keys of `WORDS`. `node` is the chosen one, "" for none."""
    if job.get("move") or job.get("state") == "preempted":
        return ["resume"]
    if job.get("state") not in ("forming", "starting", "running", "suspending", "checking", "waiting"):
        return []
    return ["preempt", *(["migrate"] if node else [])]


def under_way(job: JsonObject) -> str:
    """What was asked for and is not over, "" for nothing.

    >>> move = {"what": "preempt", "node": "", "actor": "ann", "reason": "noon", "newer_than": 41}
    >>> under_way({"state": "running", "move": move})
    'ann pre-empts it: noon. It waits for a checkpoint of step 41 or later.'
    """
    move = job.get("move")
    if not move:
        return ""
    does = "pre-empts it" if move["what"] == "preempt" else f"takes it off {move['node']}"
    told = f"{move['actor']} {does}: {move['reason']}."
    if job.get("state") in ("preempting", "preempted"):
        return told
    return f"{told} It waits for a checkpoint of step {move['newer_than']} or later."


def cost(answer: JsonObject) -> list[str]:
    """What a move would mean, in sentences. `answer` is what the hub says of it."""
    if answer["why_not"]:
        return [f"The hub refuses: {answer['why_not']}."]
    if answer["what"] == "resume":
        return ["Nodes are checked. Then the job starts from the newest step that every rank can get."]
    where = "Its ranks end and its agents stay. Its devices are free until somebody resumes it."
    if answer["what"] == "migrate":
        where = f"The job restarts with {answer['standby']} in the place of {answer['node']}."
    resume_step = answer["resume_step"]
    start = f"it would go on from step {resume_step}" if resume_step >= 0 else "it would begin anew"
    lines = [
        where,
        "It trains on until a checkpoint is there that is newer than the request, for a minute at most.",
        f"At once {start}, and {answer['lost_steps']} steps would be done again.",
        price_sentence(answer),
    ]
    return [line for line in lines if line]
