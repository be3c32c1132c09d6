"""Whichever node dies, and whatever was on its way then, all ranks have a step in common."""

import os
import random
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.checkpoint import holdings
from pulsetrain.checkpoint.memory import slots
from pulsetrain.checkpoint.memory.arena import ArenaReader, ArenaWriter, create_arena
from pulsetrain.checkpoint.memory.slots import Header
from pulsetrain.checkpoint.peers.placement import peers_of
from pulsetrain.checkpoint.peers.replicas import Replicas, Snapshot
from pulsetrain.checkpoint.peers.rounds import STILL_S, Rounds
from pulsetrain.checkpoint.peers.watched_arena import WatchedArena
from pulsetrain.protocol.messages import WorldNode
from pulsetrain.recovery.world import plan_restore

NPROC = 2


class Machine:
    """One node: its ranks' arenas, its replicas of another node's ranks, and what it is sending."""

    def __init__(self, name: str, ranks: range, clock) -> None:
        self.name, self.ranks, self.replicas = name, ranks, Replicas()
        self.fds = {rank: create_arena() for rank in ranks}
        self.writers = {rank: ArenaWriter(fd) for rank, fd in self.fds.items()}
        self.readers = {rank: ArenaReader(fd) for rank, fd in self.fds.items()}
        self.watched = [WatchedArena(rank, arena) for rank, arena in self.readers.items()]
        self.rounds = Rounds(clock=clock)
        self.writing: dict[int, object] = {}
        self.begun = dict.fromkeys(ranks, 0)
        self.sent = self.sending = None
        self.completed: list[int] = []

    def send(self):
        """A transfer to the peer, one move at a time: memory is taken, bytes arrive."""
        chosen = self.rounds.choose(self.watched)
        missing = [one for one in chosen if (one.info.rank, one.info.generation) not in (self.sent or set())]
        if not missing:
            return
        self.sent = self.sent or set()
        with self.rounds.sending(chosen) as whole:
            assert whole
            for one in missing:
                snapshot = Snapshot.of(one.info)
                memory = self.peer.replicas.buffer(snapshot)
                yield
                assert one.arena.still(one.info)
                self.peer.replicas.put(snapshot, memory)
                self.sent.add((one.info.rank, one.info.generation))
                yield
            self.rounds.end(chosen, arrived=True, complete=True)
            self.completed.append(min(one.info.step for one in chosen))

    def move(self) -> None:
        self.sending = self.sending or self.send()
        if next(self.sending, self) is self:
            self.sending = None

    def begin_save(self, rank: int) -> None:
        self.begun[rank] += 1
        header = Header(
            **{"step": self.begun[rank], "attempt": 0, "rank": rank, "world": 0},
            **{"layout_bytes": 1, "values_bytes": 1, "payload_bytes": 100},
        )
        self.writing[rank] = self.writers[rank].begin(header)
        assert self.writing[rank] is not None

    def end_save(self, rank: int) -> None:
        self.writing.pop(rank).commit()

    def held(self):
        own = [info for arena in self.readers.values() for info in arena.published()]
        return (
            *holdings.in_memory("memory", own),
            *holdings.in_memory("peer", self.replicas.list()),
        )


class Job:
    def __init__(self, nodes: int, placement: str) -> None:
        self.now_s = 0.0
        names = [f"n{i}" for i in range(nodes)]
        self.machines = [
            Machine(name, range(i * NPROC, (i + 1) * NPROC), lambda: self.now_s)
            for i, name in enumerate(names)
        ]
        for machine in self.machines:
            (peer,) = peers_of(machine.name, names, 2, placement)
            machine.peer = self.machines[names.index(peer)]
        self.world = tuple(
            WorldNode(node=name, node_rank=i, address="", peer_port=0, nproc=NPROC)
            for i, name in enumerate(names)
        )

    @property
    def complete(self) -> int:
        """The newest step that every node has sent. 0: none."""
        return max(
            set(self.machines[0].completed).intersection(*(m.completed for m in self.machines)), default=0
        )

    @property
    def begun(self) -> int:
        return min(step for machine in self.machines for step in machine.begun.values())

    def may_save(self, machine: Machine, rank: int) -> bool:
        """No rank trains a step before all have saved the one before it. Nor before that was sent."""
        sent = min(max(m.completed, default=0) for m in self.machines)
        return machine.begun[rank] == self.begun <= sent and not any(
            m.begun[r] == self.begun for m in self.machines for r in m.writing
        )

    def common(self, dead: Machine) -> int:
        """The step that the job goes on from without that node."""
        spare = tuple(
            WorldNode(node="spare", node_rank=w.node_rank, address="", peer_port=0, nproc=NPROC)
            if w.node == dead.name
            else w
            for w in self.world
        )
        return plan_restore(spare, {m.name: m.held() for m in self.machines if m is not dead}).step

    def close(self) -> None:
        for machine in self.machines:
            for fd in machine.fds.values():
                os.close(fd)


def large(count: int):
    """States are as large as those of which the arena keeps two or three."""
    return patch.multiple(slots, SMALL_BYTES=0, LARGE_BYTES=0 if count == 2 else 1 << 30)


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from(["mixed", "ring"]), st.integers(2, 4))
def test_the_death_of_any_node_leaves_the_last_step_that_all_had_sent(seed, placement, nodes):
    """Saves and transfers move in any order, but each save waits for the transfers of the one before it."""
    order = random.Random(seed)
    with large(2):
        job = Job(nodes, placement)
        try:
            while job.complete < 4:
                machine, what = order.choice(job.machines), order.randrange(NPROC + 1)
                for _ in range(order.randint(1, 6)):
                    act(job, machine, what)
                    if job.complete:
                        assert min(job.common(dead) for dead in job.machines) >= job.complete
        finally:
            job.close()


def act(job: Job, machine: Machine, what: int) -> None:
    """One move: of the transfer, or of one rank's save."""
    if what == NPROC:
        machine.move()
        return
    rank = machine.ranks[what]
    if rank in machine.writing:
        machine.end_save(rank)
    elif job.may_save(machine, rank):
        machine.begin_save(rank)


@pytest.mark.parametrize("saves", [1, 3])
@pytest.mark.parametrize("placement", ["mixed", "ring"])
def test_nodes_that_send_longer_than_a_save_takes_choose_the_same_steps(saves, placement):
    """Each rank's transfer takes some saves, and not quite as many on each node."""
    with large(3):
        job = Job(4, placement)
        try:
            common = []
            for tick in range(150 * saves):
                job.now_s += 1.0 / (2 * NPROC)
                for number, machine in enumerate(job.machines):
                    slow = (tick + number) % saves or tick % 97 == 7 * number
                    if not slow or machine.sending is None:
                        machine.move()
                if tick % (2 * NPROC) == 0:
                    for machine in job.machines:
                        for rank in machine.ranks:
                            machine.begin_save(rank)
                            machine.end_save(rank)
                common.append(min(job.common(dead) for dead in job.machines))
            late = common[len(common) // 2 :]
            assert min(late) >= 0
            assert late == sorted(late)
            assert job.begun - late[-1] < 4 * saves + 4
        finally:
            job.close()


@pytest.fixture
def machine():
    now = [0.0]
    one = Machine("n0", range(2), lambda: now[0])
    one.peer, one.now = Machine("n1", range(2, 4), lambda: now[0]), now
    yield one
    for fd in (*one.fds.values(), *one.peer.fds.values()):
        os.close(fd)


def save(machine: Machine, *ranks: int) -> None:
    for rank in ranks or machine.ranks:
        machine.begin_save(rank)
        machine.end_save(rank)


def chosen(machine: Machine) -> list[tuple[int, int]]:
    return [(one.info.rank, one.info.step) for one in machine.rounds.choose(machine.watched)]


def send_all(machine: Machine) -> None:
    for _ in machine.send():
        pass


def test_all_ranks_send_one_step(machine):
    save(machine)
    save(machine, 0)
    assert chosen(machine) == [(0, 1), (1, 1)]
    send_all(machine)
    assert machine.completed == [1]
    assert chosen(machine) == [(0, 1), (1, 1)]  # which the peer has
    save(machine, 1)
    assert chosen(machine) == [(0, 2), (1, 2)]


def test_a_round_that_was_begun_is_finished_before_a_newer_one(machine):
    save(machine)
    one = machine.rounds.choose(machine.watched)
    machine.rounds.end(one, arrived=True, complete=False)
    save(machine)
    assert chosen(machine) == [(0, 1), (1, 1)]
    machine.rounds.end(one, arrived=True, complete=True)
    assert chosen(machine) == [(0, 2), (1, 2)]


def test_a_rank_that_saves_no_more_is_waited_for_once(machine):
    save(machine)
    send_all(machine)
    save(machine, 0)
    assert chosen(machine) == [(0, 1), (1, 1)]
    machine.now[0] += STILL_S
    assert chosen(machine) == [(0, 2)]
    send_all(machine)
    save(machine, 0)
    assert chosen(machine) == [(0, 3)]
    save(machine, 1)
    save(machine, 1)
    assert chosen(machine) == [(0, 3), (1, 3)]


def test_the_last_step_is_sent_although_it_is_not_one_that_all_nodes_choose(machine):
    save(machine)
    sending = machine.send()
    next(sending)
    for _ in range(4):
        save(machine)
        machine.now[0] += 0.1
    for _ in sending:
        pass
    assert chosen(machine) == [(0, 1), (1, 1)]
    machine.now[0] += 2 * STILL_S
    assert chosen(machine) == [(0, 5), (1, 5)]


def test_the_ranks_overwrite_the_last_rounds_last(machine):
    with large(2):
        for _ in range(2):
            save(machine)
            send_all(machine)
        for _ in range(3):
            save(machine)
        arena = machine.readers[0]
        assert sorted(info.step for info in arena.published()) == [2, 4, 5]
        assert arena.kept(arena.find(0, 2))
