"""One member's part of an all-to-all among the GPUs of a machine, in a process of its own.

MegaScale (arXiv 2402.15627) section 4 lets all GPUs of a node send to all others at once. That shows whether
the node works as a whole. Which GPU or pair is at fault is seen from the second part: the members meet in
pairs, and in each pair first one sends and then the other. No member is in two transfers at a time, so a slow
pair slows nobody else.

On processors the members send to each other by themselves, as gloo has no all-to-all of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from pulsetrain.diagnostics.members import Joined, Member, joined, reason

if TYPE_CHECKING:
    import torch

PAYLOAD_BYTES = {"cpu": 1 << 20, "cuda": 64 << 20}
"""that each member sends to each other one"""
REPEATS = 3
"""timed repetitions, after a first one that opens the connections"""


@dataclass(frozen=True, kw_only=True)
class ExchangeReport:
    """Result of one member. `gpu` is its UUID, "" on processors.

    `busbw_bytes_per_s` is what it sent to all others at once, in the best repetition. `rates` maps the index
    of another member to bytes a second that came from it while nobody else was sending to either of them.
    """

    ok: bool
    gpu: str = ""
    backend: str = ""
    busbw_bytes_per_s: float = 0.0
    rates: dict[str, float] = field(default_factory=dict)
    error: str = ""


def run(
    *,
    index: int,
    size: int,
    store_address: str,
    store_port: int,
    prefix: str,
    timeout_s: float,
    processors_only: bool = False,
    payload_bytes: int = 0,
) -> dict[str, object]:
    """Join the group, exchange and compare. Returns the fields of `ExchangeReport`.

    `payload_bytes` is what goes from each member to each other one, 0 for the usual size. Never raises: a
    timeout, a refusal and wrong bytes are failed checks.
    """
    me = Member(
        index=index,
        size=size,
        store_address=store_address,
        store_port=store_port,
        prefix=prefix,
        timeout_s=timeout_s,
        processors_only=processors_only,
    )
    try:
        with joined(me) as member:
            report = _Exchange(me, member, payload_bytes).report()
    except Exception as error:  # noqa: BLE001 - any failure here is the result of the check
        report = ExchangeReport(ok=False, error=reason(error))
    return asdict(report)


def pairings(size: int) -> list[list[tuple[int, int]]]:
    """Rounds in which every member meets every other one once, by the circle method.

    >>> pairings(4)
    [[(0, 3), (1, 2)], [(0, 2), (1, 3)], [(0, 1), (2, 3)]]
    >>> pairings(3)
    [[(1, 2)], [(0, 2)], [(0, 1)]]
    """
    places = list(range(size + size % 2))
    rounds = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        pairs = zip(places[:half], reversed(places[half:]), strict=True)
        rounds.append(sorted((min(p), max(p)) for p in pairs if max(p) < size))
        places = [places[0], places[-1], *places[1:-1]]
    return rounds


class _Exchange:
    """What one member sends to each other one, and where it puts what comes."""

    def __init__(self, me: Member, member: Joined, payload_bytes: int) -> None:
        import torch

        self._me, self._member = me, member
        self._count = (payload_bytes or PAYLOAD_BYTES[member.device.type]) // 4
        self._numbers = torch.arange(self._count, dtype=torch.int32, device=member.device)
        self._out = torch.cat([self._numbers + self._mark(me.index, to) for to in range(me.size)])
        self._back = torch.zeros_like(self._out)
        self._wrong: set[int] = set()

    def _mark(self, sender: int, receiver: int) -> int:
        """What is added to the numbers that one member sends to another, so that no two blocks are equal."""
        return 1 + sender * self._me.size + receiver

    def report(self) -> ExchangeReport:
        """Send to all at once, then in pairs."""
        me = self._me
        together_s = min(self._repeated(self._everything))
        self._compare(range(me.size))
        rates = {
            str(sender): rate
            for pairs in pairings(me.size)
            for pair in pairs
            for sender, rate in self._in_pair(pair).items()
        }
        wrong = ", ".join(map(self._name, sorted(self._wrong)))
        return ExchangeReport(
            ok=not wrong,
            gpu=self._member.gpus[me.index] if self._member.gpus else "",
            backend=self._member.backend,
            busbw_bytes_per_s=(me.size - 1) * self._bytes / together_s,
            rates=rates,
            error=f"wrong bytes from {wrong}" if wrong else "",
        )

    def _name(self, member: int) -> str:
        return self._member.gpus[member] if self._member.gpus else f"member {member}"

    @property
    def _bytes(self) -> int:
        return 4 * self._count

    def _everything(self) -> None:
        import torch.distributed as dist

        if self._member.backend == "nccl":
            dist.all_to_all_single(self._back, self._out)
            return
        others = [i for i in range(self._me.size) if i != self._me.index]
        self._part(self._back, self._me.index).copy_(self._part(self._out, self._me.index))
        under_way = [dist.irecv(self._part(self._back, i), src=i) for i in others]
        under_way += [dist.isend(self._part(self._out, i), dst=i) for i in others]
        for work in under_way:
            if work is not None:
                work.wait()

    def _in_pair(self, pair: tuple[int, int]) -> dict[int, float]:
        """Send and receive as one of a pair. The rate at which the other one's bytes came, by its index."""
        import torch.distributed as dist

        rates: dict[int, float] = {}
        for sender, receiver in (pair, pair[::-1]):
            if self._me.index == sender:
                self._repeated(partial(dist.send, self._part(self._out, receiver), dst=receiver))
            elif self._me.index == receiver:
                self._part(self._back, sender).zero_()
                took = self._repeated(partial(dist.recv, self._part(self._back, sender), src=sender))
                rates[sender] = self._bytes / min(took)
                self._compare([sender])
        return rates

    def _part(self, whole: torch.Tensor, member: int) -> torch.Tensor:
        return whole[member * self._count : (member + 1) * self._count]

    def _compare(self, senders: range | list[int]) -> None:
        for sender in senders:
            expected = self._numbers + self._mark(sender, self._me.index)
            if not bool((self._part(self._back, sender) == expected).all()):
                self._wrong.add(sender)

    def _repeated(self, work: Callable[[], object]) -> list[float]:
        """Seconds of each timed repetition."""
        return [self._timed(work) for _ in range(REPEATS + 1)][1:]

    def _timed(self, work: Callable[[], object]) -> float:
        import torch

        began = time.perf_counter()
        work()
        if self._member.device.type == "cuda":
            torch.cuda.synchronize(self._member.device)
        return time.perf_counter() - began
