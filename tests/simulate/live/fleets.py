"""Small fleets for tests."""

from pulsetrain.protocol.messages import Start, WorldNode, decode
from pulsetrain.simulate.live.fleet import LiveFleet
from pulsetrain.simulate.live.heartbeats import HeartbeatWriter, Moment, NodeReport
from pulsetrain.simulate.live.job import LiveJob
from pulsetrain.simulate.live.plan import parse_plan

FLEET = LiveFleet(nodes=4, ranks_per_node=4, tp=2, pp=2, step_s=2.0, relaunch_s=1.0, checkpoint_every=2)


def faults(*tables, fleet=FLEET):
    return parse_plan({"fault": list(tables)}, fleet)


def start(attempt=0, fleet=FLEET, nodes=None, restore_step=-1, node_rank=0):
    names = nodes or fleet.names[: fleet.nodes]
    world = tuple(
        WorldNode(node=name, node_rank=rank, address="h", peer_port=1, nproc=fleet.ranks_per_node)
        for rank, name in enumerate(names)
    )
    return Start(
        id=1, job=fleet.job, attempt=attempt, node_rank=node_rank, world=world, store_address="h",
        store_port=1, restore_step=restore_step,
    )  # fmt: skip


def launched(*tables, fleet=FLEET, now_s=100.0):
    """A job whose first step begins at `now_s`."""
    job = LiveJob(fleet, faults(*tables, fleet=fleet))
    launch(job, now_s - fleet.relaunch_s)
    return job


def launch(job, now_s, attempt=0, nodes=None, restore_step=-1):
    names = nodes or job.fleet.names[: job.fleet.nodes]
    for rank, name in enumerate(names):
        command = start(attempt, job.fleet, names, restore_step, rank)
        job.start(name, command, now_s)


def run_until(job, now_s, until_s, tick_s=0.1):
    """Let time pass. Returns everything that happened."""
    seen = []
    while now_s <= until_s:
        seen.append(job.tick(now_s))
        now_s += tick_s
    return seen


def say(job, now_s, **changes):
    """The heartbeats of all nodes at one moment, decoded."""
    fleet = job.fleet
    writer = HeartbeatWriter(fleet, fleet.spec())
    nodes = [job.ranks(name) for name in fleet.names]
    ranks = [rank for each in nodes for rank in each]
    moment = Moment(now_s=now_s, positions=job.positions(ranks, now_s), states=job.states(), resumed_step=-1)
    reports, at = [], 0
    for name, each in zip(fleet.names, nodes, strict=True):
        base = {"node": name, "seq": 3, "ts_ns": 5, "attempt": job.number, "ranks": each, "at": at}
        reports.append(NodeReport(**{**base, "holding": job.held_by(name), **changes}))
        at += len(each)
    return [decode(text) for text in writer.write(reports, moment)]
