"""Every kind of hardware trouble on a running job: which response follows, and how soon it is done.

Hub, agents and ranks are real. Each agent loads the C library of tests/nvml instead of NVIDIA's. A case
changes a value or raises an Xid there. Cases that evict must replace the node, the others must not. That
parameters stay the same is shown by tests/hub/test_hardware_job.py.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from machinecheck.site import Site  # noqa: E402  # the library of the tests needs the root
from pulsetrain.protocol.client import find_hub  # noqa: E402
from pulsetrain.recovery.response import Response  # noqa: E402
from pulsetrain.stream.store.clickhouse import open_store  # noqa: E402
from tests.nvml.library import TestDriver  # noqa: E402

SCRIPT = ROOT / "examples" / "train_gpt.py"
SHAPE = ("--tp", "1", "--pp", "1", "--dp", "2", "--batch", "8", "--seq", "32", "--layers", "1", "--dim", "32")
GPUS = 4
STEPS = 1_000_000  # the job is ended when the last case is done
LIMIT_S = 10.0
STORED_S = 30.0  # within which a finding can be read from the store
ORDER = ("", *map(str, sorted(Response, key=lambda response: response.rank)))
STANDBYS = ("c", "d")
CONFIG = """
[controller]
evictions_per_hour = 1000
probation_s = 1.0
min_healthy_ratio = 0.3
"""

Strike = Callable[[TestDriver, int], None]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One trouble of one GPU, and the response that the policy table has for it."""

    name: str
    strike: Strike
    response: str


def _xid(code: int) -> Strike:
    return lambda driver, gpu: driver.raise_event(gpu, code)


def _set(**values: float) -> Strike:
    return lambda driver, gpu: driver.set(gpu, **values)


def _flood(driver: TestDriver, gpu: int) -> None:
    """Corrected errors of a failing memory: 5,000 a second, for as long as the rule needs to see them."""
    end_s, total = time.monotonic() + LIMIT_S - 1, 0
    while time.monotonic() < end_s:
        total += 500
        driver.set(gpu, ecc_corrected=total)
        time.sleep(0.1)


MILD = (
    Case(name="Xid 63", strike=_xid(63), response="inform"),
    Case(name="Xid 94", strike=_xid(94), response="cordon"),
    Case(name="thermal throttle", strike=_set(event_reasons=0x40), response="cordon"),
    Case(name="uncorrected error", strike=_set(ecc_uncorrected=1), response="cordon"),
)
EVICTING = (
    Case(name="Xid 79", strike=_xid(79), response="evict_now"),
    Case(name="Xid 95", strike=_xid(95), response="evict_now"),
    Case(name="Xid 119", strike=_xid(119), response="evict_now"),
    Case(name="GPU lost", strike=_set(lost=1), response="evict_now"),
    Case(name="Xid 48", strike=_xid(48), response="evict_at_step"),
    Case(name="Xid 64", strike=_xid(64), response="evict_at_step"),
    Case(name="link width drop", strike=_set(pcie_width=8), response="evict_at_step"),
    Case(name="corrected errors", strike=_flood, response="evict_at_step"),
)


class Cluster(Site):
    """A hub, two nodes of one rank, two standbys. A node that was evicted comes back as a standby."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, CONFIG)
        self.drivers: dict[str, TestDriver] = {}
        _until(lambda: self.ask(lambda hub: hub.status()) is not None, 90)
        for name in ("a", "b"):
            self.start(name, "run")
        _until(lambda: self.job().get("step", -1) >= 5, 120)
        for name in STANDBYS:
            self.start(name, "agent", "--standby")

    def start(self, name: str, *verb: str) -> None:
        """Start a node with healthy GPUs."""
        driver = self.drivers[name] = TestDriver(self.folder / f"driver-{name}-{time.time_ns()}", GPUS, name)
        flags = ("--job", "j", "--node", name, "--nnodes", "2", "--nproc-per-node", "1")
        script = (str(SCRIPT), *SHAPE, "--heads", "2", "--steps", str(STEPS))
        self.agents[name] = self.spawn(driver.environ, *verb, *flags, *script)

    def world(self) -> list[str]:
        """Nodes that train."""
        return sorted(name for name, row in self.nodes().items() if row["state"] == "active")

    def response(self, uuid: str) -> str:
        """What the open findings on a GPU ask for, the strictest of all. "": there is none."""
        return strictest(row["evidence"] for row in self.job().get("findings", []) if uuid in row["subject"])

    def stored_response(self, uuid: str, since_ns: int) -> str:
        """The same of findings that were stored since then: those on a node that is gone are not open."""
        address = find_hub(environ=self.env)
        store = open_store(address.url, token=address.token)
        try:
            rows = store.query(
                "SELECT evidence FROM findings WHERE position(subject, {uuid:String}) > 0 "
                "AND toUnixTimestamp64Nano(ts) >= {since:Int64}",
                {"uuid": uuid, "since": since_ns},
            ).to_pylist()
        finally:
            store.close()
        return strictest(row["evidence"] for row in rows)


def strictest(evidence: Iterable[str]) -> str:
    """The strictest response in findings' evidence (JSON). "": none has one."""
    found = [json.loads(text).get("response", "") for text in evidence]
    return max(found, key=ORDER.index, default="")


def _until(holds: Callable[[], bool], limit_s: float) -> float | None:
    """Seconds until it held, None where it did not in time."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < limit_s:
        if holds():
            return time.monotonic() - began_s
        time.sleep(0.05)
    return None


def _mild(cluster: Cluster, case: Case, gpu: int) -> dict[str, object]:
    before = cluster.job()["attempt"]
    began_s = time.monotonic()
    case.strike(cluster.drivers["b"], gpu)
    _until(lambda: cluster.response(f"GPU-b{gpu}") == case.response, LIMIT_S)
    took_s = time.monotonic() - began_s
    seen = cluster.response(f"GPU-b{gpu}")
    undisturbed = cluster.job()["attempt"] == before and "b" in cluster.world()
    return _row(case, seen, took_s, done=undisturbed)


def _evicting(cluster: Cluster, case: Case) -> dict[str, object]:
    ready = _until(lambda: _ready(cluster), 60)
    target = next(name for name in cluster.world() if name != "a")
    before = cluster.job()["attempt"]
    began_s, began_ns = time.monotonic(), time.time_ns()
    strike = threading.Thread(target=case.strike, args=(cluster.drivers[target], 3))
    strike.start()  # some last for a while

    def replaced() -> bool:
        world = cluster.world()
        return target not in world and len(world) == 2

    done = ready is not None and _until(replaced, LIMIT_S) is not None
    took_s = time.monotonic() - began_s
    _until(lambda: cluster.job().get("attempt", 0) > before and cluster.job().get("state") == "running", 30)
    cluster.agents[target].wait(timeout=30)
    strike.join()
    _until(lambda: cluster.stored_response(f"GPU-{target}3", began_ns) == case.response, STORED_S)
    seen = cluster.stored_response(f"GPU-{target}3", began_ns)
    cluster.start(target, "agent", "--standby")
    return _row(case, seen, took_s, done=done)


def _ready(cluster: Cluster) -> bool:
    """The job trains, and there is somebody to replace a node."""
    spare = [row for row in cluster.nodes().values() if row["state"] == "standby" and not row["cordon"]]
    return bool(spare) and cluster.job().get("state") == "running" and len(cluster.world()) == 2


def _row(case: Case, seen: str, took_s: float, *, done: bool) -> dict[str, object]:
    right = done and took_s <= LIMIT_S and seen == case.response
    return {
        "case": case.name,
        "response": case.response,
        "seen": seen,
        "seconds": round(took_s, 2),
        "right": right,
    }


def run(*, quick: bool = False) -> dict[str, object]:
    """Run all cases, or with `quick` one that evicts nobody and one that evicts, in one job."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder))
        try:
            _until(lambda: _ready(cluster), 60)
            rows = [_mild(cluster, case, gpu) for gpu, case in enumerate(MILD[:1] if quick else MILD)]
            rows += [_evicting(cluster, case) for case in (EVICTING[:1] if quick else EVICTING)]
        finally:
            cluster.close()
    return {"cases": len(rows), "right": sum(bool(row["right"]) for row in rows), "rows": rows}
