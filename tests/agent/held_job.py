"""Real ranks with rings, and one who asks them to stand as an agent and the hub would."""

import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

from pulsetrain.agent import holding
from pulsetrain.collectors.rank.ring import create_ring
from pulsetrain.collectors.reading.ring_reader import RingReader
from pulsetrain.elastic import positions
from pulsetrain.elastic.barrier import decide, waited_for
from pulsetrain.protocol.messages import HoldRanks

RUNNER = """
import runpy, sys
from pulsetrain.collectors.rank import bootstrap
bootstrap.install()
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""
REPOSITORY = Path(__file__).parents[2]
LIMIT_S = 180.0  # beside other tests eight ranks start slowly


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


class Rank:
    """One process and its ring."""

    def __init__(self, rank, world, port, folder, command):
        fd = create_ring(1024)
        environ = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
        environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        environ |= {"PULSETRAIN_RING_FD": str(fd), "LOCAL_WORLD_SIZE": str(world)}
        self.rank, self.output = rank, folder / f"rank{rank}.out"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", RUNNER, *command],
                env=environ,
                pass_fds=[fd],
                stdout=output,
                stderr=output,
            )
        self.reader = RingReader(fd)
        os.close(fd)

    def hold(self, number, past, until_ns, saved_step):
        self.reader.hold(number, past, until_ns, saved_step)

    @property
    def stands(self):
        return self.reader.stands

    def position(self):
        return self.reader.position()


class HeldJob:
    """A job of `world` ranks, and the barriers that were asked of it."""

    def __init__(self, folder, world, *command):
        port = free_port()
        folder.mkdir(exist_ok=True)
        self.ranks = [Rank(r, world, port, folder, [str(part) for part in command]) for r in range(world)]
        self.number = 0

    def last_steps(self):
        return [rank.reader.status().last_step for rank in self.ranks]

    def reach(self, step):
        until = time.monotonic() + LIMIT_S
        while min(self.last_steps()) < step:
            self.drain()
            assert time.monotonic() < until, [rank.output.read_text()[-500:] for rank in self.ranks]
            time.sleep(0.01)

    def drain(self):
        for rank in self.ranks:
            rank.reader.drain()

    def look(self, past):
        answer = {}
        for rank in self.ranks:  # one node each, at different times
            asked = {str(rank.rank): past.get(rank.rank, 0)}
            command = HoldRanks(id=1, attempt=0, number=self.number, past=asked, wait_s=0.0)
            answer |= holding.run(command, 0, [rank])["ranks"]
        return {int(rank): positions.decode(int(rank), text) for rank, text in answer.items()}

    def bring_to_stand(self, generator):
        """One barrier. Ranks hear of it at different times. Returns the most ends of steps of a rank."""
        self.number += 1
        for rank in generator.sample(self.ranks, len(self.ranks)):
            command = HoldRanks(id=1, attempt=0, number=self.number, wait_s=0.0)
            holding.run(command, 0, [rank])
            time.sleep(generator.random() * 0.01)
        past, until = {}, time.monotonic() + LIMIT_S
        world = range(len(self.ranks))
        while True:
            self.drain()
            seen = self.look(past)
            decision = decide(seen, world)
            if decision.acquired:
                return max(position.arrivals for position in seen.values())
            past |= {rank: seen[rank].arrivals for rank in decision.run_on}
            assert time.monotonic() < until, waited_for(seen, world)
            time.sleep(0.001)

    def let_go(self):
        for rank in self.ranks:
            holding.run(HoldRanks(id=1, attempt=0, number=0), 0, [rank])

    def wait(self):
        """Until all have ended well."""
        until = time.monotonic() + 2 * LIMIT_S
        while any(rank.process.poll() is None for rank in self.ranks):
            self.drain()
            assert time.monotonic() < until
            time.sleep(0.05)
        assert [rank.process.returncode for rank in self.ranks] == [0] * len(self.ranks), [
            rank.output.read_text()[-800:] for rank in self.ranks
        ]

    def close(self):
        for rank in self.ranks:
            if rank.process.poll() is None:
                rank.process.kill()
            rank.process.wait()


def disturb(job, times, seed, last_step):
    """Ask for barriers at seeded moments until one has been acquired `times` times.

    Returns for each the steps that its slowest rank came to the end of.
    """
    generator = random.Random(seed)
    took = []
    job.reach(1)
    while len(took) < times:
        time.sleep(generator.random() * 0.03)
        assert max(job.last_steps()) < last_step - 4, (
            f"the job is too short for {times} barriers: {len(took)}"
        )
        took.append(job.bring_to_stand(generator))
        stood = job.last_steps()
        time.sleep(0.005)
        assert job.last_steps() == stood
        job.let_go()
    return took
