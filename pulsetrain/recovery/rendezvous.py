"""Where the ranks of an attempt meet: a store beside the hub, or on the first node of the world."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from pulsetrain.core.errors import Unavailable
from pulsetrain.protocol.messages import HostStore, Reply, WorldNode
from pulsetrain.recovery import faults
from pulsetrain.recovery.record import Fault
from pulsetrain.recovery.state import JobState
from pulsetrain.recovery.store_host import is_loopback

log = structlog.get_logger()

UNREACHABLE = "store_unreachable"
"""Field of the reply to `Start`: why a node does not reach the store. It has launched no rank then."""


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """The store of one attempt. `host` is the node that hosts it, "" for the hub."""

    port: int
    host: str
    addresses: dict[str, str]
    """by the name of the node that connects"""

    @property
    def on_hub(self) -> bool:
        """Whether it is beside the hub."""
        return not self.host


async def open_store(job: JobState) -> Rendezvous | Fault:
    """A new store for the present attempt, with no key of an attempt before it.

    A job of one node has it on that node: there its ranks need no other machine.
    """
    members = job.members
    if len(members.world) > 1:
        try:
            port = await job.services.stores.open(job.name)
        except Unavailable as error:
            log.warning("store_not_hosted", job=job.name, why=str(error), host=members.world[0].node)
            port = 0
        addresses = {m.node: members.nodes[m.node].hub_address for m in members.world}
        if port and all(addresses.values()):
            return Rendezvous(port=port, host="", addresses=_of_one_machine(addresses))
    return await on_first_node(job)


async def on_first_node(job: JobState) -> Rendezvous | Fault:
    """A new store on the node of node_rank 0."""
    first: WorldNode = job.members.world[0]
    reply = await job.ask(job.members.nodes[first.node], HostStore(id=job.next_id(), job=job.name))
    if reply.error:
        return faults.launch_failed(first.node, reply.error, job.attempt.number, job.now_ns())
    addresses = {member.node: first.address for member in job.members.world}
    return Rendezvous(port=int(reply.data["port"]), host=first.node, addresses=addresses)


def is_reached(job: JobState, store: Rendezvous, replies: Iterable[Reply]) -> bool:
    """Whether every node reached the store. Where one did not, this job's next stores are on its nodes."""
    missed = [reply for reply in replies if reply.data.get(UNREACHABLE)]
    if not store.on_hub or not missed:
        return True
    job.services.stores.give_up(job.name)
    why = str(missed[0].data[UNREACHABLE])
    log.warning("store_not_reached", job=job.name, node=missed[0].node, nodes=len(missed), why=why)
    return False


def _of_one_machine(addresses: dict[str, str]) -> dict[str, str]:
    """The same addresses. A node on the hub's own machine gets the one that other machines use, if one does.

    >>> _of_one_machine({"a": "127.0.0.1", "b": "10.0.0.5"})
    {'a': '10.0.0.5', 'b': '10.0.0.5'}
    """
    outward = next((a for a in addresses.values() if not is_loopback(a)), "")
    return {node: outward if outward and is_loopback(a) else a for node, a in addresses.items()}
