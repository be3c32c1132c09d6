"""Which nodes cannot talk: small groups of nodes all-gather, and regrouping separates culprit from partner.

The planning is pure. `round_one` pairs neighbours; `round_two` puts each node of a failed pair beside a node
that is known to be good, and where nothing failed the fastest beside the slowest; `next_round` goes on where
two rounds leave someone in doubt (more suspects than good partners). `faulty` names only nodes that failed
beside good ones, so a healthy node that was paired with broken ones twice is not evicted; `slow` names nodes
whose best time is far above the fast half of the fleet. The two-round scheme is DLRover's network check
(dlrover.master.elastic_training.rdzv_manager), which evicts whoever failed twice and calls slow what takes
more than twice the median.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from statistics import median
from typing import Any

Group = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PairResult:
    """How one group's all-gather went. `seconds` is what it took, summed over its repetitions; meaningless
    where not `ok`. `error` is the first member's reason, one line."""

    members: Group
    ok: bool
    seconds: float
    error: str = ""

    def row(self) -> dict[str, Any]:
        """The result as JSON-able evidence."""
        return asdict(self) | {"members": list(self.members)}


def round_one(nodes: Sequence[str]) -> list[Group]:
    """Neighbours in the order given, two by two; an odd one joins the last pair. Fewer than two: no group.

    >>> round_one(["1", "2", "3", "4", "5"])
    [('1', '2'), ('3', '4', '5')]
    """
    pairs = [tuple(nodes[i : i + 2]) for i in range(0, len(nodes) - 1, 2)]
    if len(nodes) % 2 and pairs:
        pairs[-1] += (nodes[-1],)
    return pairs


def round_two(results: Sequence[PairResult]) -> list[Group]:
    """The groups of the second round: suspects beside good nodes, or slowest beside fastest.

    >>> one = [PairResult(members=m, ok=m != ("5", "6"), seconds=1.0) for m in round_one("123456")]
    >>> round_two(one)
    [('1', '2'), ('3', '5'), ('4', '6')]
    """
    if any(not r.ok for r in results):
        return next_round(results)
    times = best_times(results)
    ranked = sorted(times, key=lambda node: (times[node], node))
    half = len(ranked) // 2
    groups: list[Group] = [(ranked[i], ranked[-1 - i]) for i in range(half)]
    if len(ranked) % 2 and groups:
        groups[-1] += (ranked[half],)
    return groups


def next_round(results: Sequence[PairResult]) -> list[Group]:
    """Disjoint groups that decide the most nodes still in doubt; empty when nobody is, or nothing more can
    be asked. Good nodes left over are paired again, so that every node has a second time."""
    suspects, good = undecided(results), sorted(_good(results))
    if not suspects:
        return []
    if not good:
        return _fresh_pairs(suspects, results)
    asked = min(len(suspects), len(good))
    spare, partners = good[: len(good) - asked], good[len(good) - asked :]
    return [*round_one(spare), *zip(partners, suspects[:asked], strict=True)]


def _fresh_pairs(suspects: Sequence[str], results: Iterable[PairResult]) -> list[Group]:
    """Disjoint pairs that never stood in a failed pair alone together; greedy in order."""
    tried = {frozenset(r.members) for r in results if len(r.members) == 2}
    free, groups = list(suspects), list[Group]()
    while free:
        first = free.pop(0)
        partner = next((n for n in free if frozenset((first, n)) not in tried), None)
        if partner is not None:
            free.remove(partner)
            groups.append((first, partner))
    return groups


def undecided(results: Iterable[PairResult]) -> list[str]:
    """Nodes that only ever failed, and never beside good nodes alone; sorted."""
    seen = list(results)
    named, good = faulty(seen), _good(seen)
    return sorted({n for r in seen for n in r.members} - named.keys() - good)


def faulty(results: Iterable[PairResult]) -> dict[str, str]:
    """Node -> why: it never succeeded, and failed in a group whose other members all succeeded elsewhere."""
    seen = list(results)
    good = _good(seen)
    reasons: dict[str, str] = {}
    for result in seen:
        rest = [n for n in result.members if n not in good]
        if not result.ok and len(rest) == 1:
            partners = ", ".join(n for n in result.members if n != rest[0])
            why = f": {result.error}" if result.error else ""
            reasons[rest[0]] = f"all-gather with {partners} failed, which passed elsewhere{why}"
    return reasons


def judge(results: Sequence[PairResult]) -> dict[str, str]:
    """What a controller acts on: `faulty`. `slow` and `undecided` are for people."""
    return faulty(results)


def slow(results: Sequence[PairResult], *, ratio: float = 1.5, spread: float = 6.0) -> dict[str, float]:
    """Node -> its best time over the fleet's, for nodes above both `ratio` times the fleet's and `spread`
    robust deviations. The fleet is the faster half, so that half a fleet of slow nodes is still seen.

    >>> t0, t1 = {"2": 20.3, "3": 20.3, "0": 206.9, "1": 151.8}, {"2": 20.3, "3": 20.3, "0": 23.2, "1": 136.0}
    >>> one = [PairResult(members=(n,), ok=True, seconds=s) for t in (t0, t1) for n, s in t.items()]
    >>> sorted(slow(one))
    ['1']
    """
    times = best_times(results)
    if len(times) < 3:
        return {}
    fast = sorted(times.values())[: (len(times) + 1) // 2]
    centre = median(fast)
    deviation = 1.4826 * median(abs(t - centre) for t in fast)
    limit = max(ratio * centre, centre + spread * deviation)
    return {node: t / centre for node, t in sorted(times.items()) if centre > 0 and t > limit}


def best_times(results: Iterable[PairResult]) -> dict[str, float]:
    """Each node's shortest time over the groups in which it succeeded, in seconds."""
    times: dict[str, float] = {}
    for result in results:
        for node in result.members if result.ok else ():
            times[node] = min(times.get(node, result.seconds), result.seconds)
    return times


def _good(results: Iterable[PairResult]) -> set[str]:
    return {n for r in results if r.ok for n in r.members}


def all_gather(
    *,
    index: int,
    size: int,
    store_address: str,
    store_port: int,
    prefix: str,
    timeout_s: float,
    payload_bytes: int = 1 << 20,
    repeats: int = 8,
) -> dict[str, Any]:
    """One member's part of a group's check, in a process of its own: join, multiply, all-gather, compare.

    Returns {"ok", "seconds" (of `repeats` all-gathers after a first one), "compute_seconds",
    "busbw_bytes_per_s", "backend", "error"}. Never raises: a timeout, a refusal and wrong bytes are failed
    checks. NCCL where every member has a GPU of its own, else gloo.
    """
    try:
        return _exchange(index, size, (store_address, store_port), prefix, timeout_s, payload_bytes, repeats)
    except Exception as error:  # noqa: BLE001 - whatever goes wrong here is the check's result
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return {"ok": False, "seconds": timeout_s, "compute_seconds": 0.0, "error": reason[:300]}


def _exchange(
    index: int,
    size: int,
    where: tuple[str, int],
    prefix: str,
    timeout_s: float,
    payload_bytes: int,
    repeats: int,
) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    limit = timedelta(seconds=timeout_s)
    store = dist.PrefixStore(prefix, dist.TCPStore(where[0], where[1], is_master=False, timeout=limit))
    device = _device(store, index, size)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=index, world_size=size, timeout=limit)
    try:
        compute_s = _multiply(device)
        mine = torch.full((payload_bytes // 4,), index + 1, dtype=torch.int32, device=device)
        parts = [torch.zeros_like(mine) for _ in range(size)]
        dist.all_gather(parts, mine)
        began = time.perf_counter()
        for _ in range(repeats):
            dist.all_gather(parts, mine)
        wrong = [i for i, part in enumerate(parts) if not bool((part == i + 1).all())]
        seconds = time.perf_counter() - began
    finally:
        dist.destroy_process_group()
    return {
        "ok": not wrong,
        "seconds": seconds,
        "compute_seconds": compute_s,
        "busbw_bytes_per_s": repeats * payload_bytes * (size - 1) / seconds,
        "backend": backend,
        "error": f"wrong bytes from members {wrong}" if wrong else "",
    }


def _device(store: Any, index: int, size: int) -> Any:
    """A GPU of this member's own, where every member has one; members tell each other through the store."""
    import torch

    cuda = torch.cuda.is_available()
    mine = str(torch.cuda.get_device_properties(0).uuid) if cuda else ""
    store.set(f"gpu/{index}", mine)
    gpus = {store.get(f"gpu/{i}").decode() for i in range(size)}
    if cuda:
        torch.cuda.set_device(0)
    return torch.device("cuda", 0) if len(gpus) == size and "" not in gpus else torch.device("cpu")


def _multiply(device: Any, width: int = 256, repeats: int = 4) -> float:
    """Seconds of a few matrix products: tells a slow processor from a slow network."""
    import torch

    a = torch.ones(width, width, device=device)
    began = time.perf_counter()
    for _ in range(repeats):
        b = a @ a
    float(b[0, 0])
    return time.perf_counter() - began
