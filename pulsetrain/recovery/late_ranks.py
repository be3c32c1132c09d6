"""Ranks of a pre-empted job that run after all, on the node that has dumped them.

Its connection was away for longer than a node may be. Meanwhile a restore came to its end that nobody has
heard of, or dumped ranks ran on because nobody has ended them. Their image is used up then. Nothing else has
what they did, so they are not ended. The job is taken over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pulsetrain.protocol.messages import Reply
from pulsetrain.recovery.move_request import Image
from pulsetrain.recovery.nodes import Node
from pulsetrain.recovery.state import JobState
from pulsetrain.recovery.transitions import PREEMPTED, Phase


def take_note(job: JobState, node: Node) -> bool:
    """An agent has come. Whether it says that it runs such ranks, or is just restoring them."""
    image = _image(job)
    if job.move is None or image is None or image.node != node.name or not node.busy:
        return False
    job.move.found = "yes"
    return True


def dumped_as(job: JobState) -> str:
    """The image without which ranks of a job that is being pre-empted must not end, "" for none."""
    image = _image(job)
    return image.name if image is not None else ""


def note_refusals(job: JobState, replies: Sequence[Reply]) -> None:
    """Take note of a node that ends no ranks: it has waited too long for that, and has let them run on."""
    image, attempt = _image(job), job.attempt.number
    if job.move is None or image is None:
        return
    for reply in replies:
        node = job.members.nodes.get(reply.node)
        if not reply.data.get("ranks_run") or node is None or node.name != image.node:
            continue
        places = [member.node_rank for member in job.members.world if member.node == node.name]
        if places:
            world = len(job.members.world)
            node.hello = replace(node.hello, attempt=attempt, node_rank=places[0], world_nodes=world)
            job.move.found = "yes"


def are_awaited(job: JobState) -> bool:
    """Whether an agent has said so, and the job was not taken over yet."""
    return job.move is not None and job.move.found != "no"


def are_on(job: JobState, node: Node) -> bool:
    """Whether this is that agent's node. Its ranks must not be ended."""
    image = _image(job)
    return are_awaited(job) and image is not None and image.node == node.name


def running(job: JobState) -> Node | None:
    """The node on which they run, told once. None as long as they are restored, or where none is there."""
    image = _image(job)
    if job.move is None or image is None or job.move.found != "yes" or job.phase is not Phase.PREEMPTED:
        return None
    node = job.members.nodes.get(image.node)
    if node is None or not node.usable or not node.busy:
        job.move.found = "no"
        return None
    if node.hello.restoring >= 0:
        return None
    job.move.found = "taken_over"
    return node


def rule_out(job: JobState) -> None:
    """Note it where the node of the image is there and has said that it neither runs nor restores ranks."""
    image = _image(job)
    node = job.members.nodes.get(image.node) if image is not None else None
    if job.move is not None and node is not None and node.usable and not node.busy:
        job.move.restoring = False


def _image(job: JobState) -> Image | None:
    image = job.move.image if job.move is not None and job.phase in PREEMPTED else None
    return image if image is not None and image.state == "taken" else None
