"""A model of a job under the barrier: ranks with arbitrary programs, agents that are late, one who asks.

A program comes from one global order of operations, so that it cannot deadlock by itself. A rank that waits
in an operation stands nowhere. Agents look at ranks at different times, and their commands arrive late.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from pulsetrain.elastic.barrier import Channel, Position, decide

ENTER, WAIT, SAFE = "enter", "wait", "safe"


@dataclass
class Program:
    """Operations of each rank, in its order.

    (ENTER, channel, is asynchronous), (WAIT, channel, number) or (SAFE, None, 0).
    """

    ranks: int
    ops: dict[int, list] = field(default_factory=lambda: defaultdict(list))
    counts: dict = field(default_factory=lambda: defaultdict(int))

    def collective(self, members, asynchronous=()):
        """One operation. A member in `asynchronous` goes on without waiting."""
        channel = Channel("g" + "".join(map(str, members)), tuple(members))
        for rank in members:
            self._enter(rank, channel, rank in asynchronous)

    def send(self, source, target, asynchronous=()):
        channel = Channel("p2p", (source, target), directed=True)
        for rank in (source, target):
            self._enter(rank, channel, rank in asynchronous)

    def _enter(self, rank, channel, asynchronous):
        self.counts[rank, channel] += 1
        self.ops[rank].append((ENTER, channel, asynchronous))

    def wait(self, rank):
        """Wait for all that this rank has entered."""
        for (who, channel), count in list(self.counts.items()):
            if who == rank:
                self.ops[rank].append((WAIT, channel, count))

    def safe(self, rank):
        self.ops[rank].append((SAFE, None, 0))


class Rank:
    def __init__(self, number, ops):
        self.number, self.ops, self.at = number, ops, 0
        self.entered = defaultdict(int)
        self.needs = None  # (channel, number) that it waits for
        self.asked, self.past, self.arrivals, self.stands = False, 0, 0, False
        self.safe_points = 0  # passed or stood at

    @property
    def done(self):
        return self.at >= len(self.ops) and self.needs is None and not self.stands

    def position(self, in_flight):
        return Position(
            stands=self.stands and self.arrivals > self.past,
            arrivals=self.arrivals,
            in_flight=in_flight,
            entered=dict(self.entered),
        )


class Model:
    """Runs programs step by step. `choose(n)` returns a number below n: it decides who moves."""

    def __init__(self, program, choose):
        self.ranks = [Rank(r, program.ops[r]) for r in range(program.ranks)]
        self.world = range(program.ranks)
        self.choose = choose
        self.acquired = self.given_up = False
        self.snapshots, self.commands = {}, []
        self.asked_at = {}

    def complete(self, channel, number):
        return all(self.ranks[member].entered[channel] >= number for member in channel.members)

    def open_operations(self, rank):
        return sum(not self.complete(channel, count) for channel, count in rank.entered.items())

    def known_in_flight(self, rank):
        """Gloo tells the end of a send or receive only to who waits. So these do not count."""
        counts = [(channel, count) for channel, count in rank.entered.items() if not channel.directed]
        return sum(not self.complete(channel, count) for channel, count in counts)

    def can_move(self, rank):
        if rank.needs is not None:
            return self.complete(*rank.needs)
        return not rank.done if not rank.stands else rank.past >= rank.arrivals

    def move(self, rank):
        if rank.needs is not None:
            rank.needs = None
            return
        if rank.stands:
            rank.stands = False
            return
        kind, channel, what = rank.ops[rank.at]
        rank.at += 1
        if kind == ENTER:
            rank.entered[channel] += 1
            if not what:
                rank.needs = (channel, rank.entered[channel])
        elif kind == WAIT:
            rank.needs = (channel, what)
        else:
            rank.safe_points += 1
            if rank.asked:
                rank.arrivals += 1
                rank.stands = rank.arrivals > rank.past

    def ask(self, rank):
        rank.asked = True
        self.asked_at[rank.number] = rank.safe_points

    def give_up(self):
        """A rank ended before it was asked, so that it will never stand. All are let go."""
        for rank in self.ranks:
            rank.asked, rank.past = False, len(rank.ops)
        self.given_up = True

    def look(self):
        """One move of who asks: an agent is told, an agent looks, or all have looked and it decides."""
        if self.commands:
            number = self.commands.pop(self.choose(len(self.commands)))
            self.ranks[number].past = self.ranks[number].arrivals
            return
        left = [rank for rank in self.ranks if rank.number not in self.snapshots]
        if left:
            rank = left[self.choose(len(left))]
            self.snapshots[rank.number] = rank.position(self.known_in_flight(rank))
            return
        decision = decide(self.snapshots, self.world)
        self.acquired = decision.acquired
        self.commands = sorted(decision.run_on)
        self.snapshots = {}

    def run(self, most=20_000):
        """Until the barrier is acquired or all programs have ended. Returns whether it is acquired."""
        for _ in range(most):
            if not self.given_up and any(rank.done for rank in self.ranks):
                self.give_up()
            movers = [rank for rank in self.ranks if self.can_move(rank)]
            unasked = [] if self.given_up else [rank for rank in self.ranks if not rank.asked]
            pick = self.choose(len(movers) + len(unasked) + (not self.given_up))
            if pick < len(movers):
                self.move(movers[pick])
            elif pick < len(movers) + len(unasked):
                self.ask(unasked[pick - len(movers)])
            elif not self.given_up:
                self.look()
            if self.acquired:
                return True
            if all(rank.done for rank in self.ranks):
                return False
            assert movers or unasked or not self.given_up, "the job stands still"
        raise AssertionError("the job stands still")
