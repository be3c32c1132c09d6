"""A NaN, wrong products of one machine, a clock that drops by 10 %, and stops without any of them.

A hub, three nodes that train and a standby are real processes. Each run draws by its seed what happens to
whom:

- `nan`: the fault library makes a rank's loss a NaN. Its node must multiply, do so rightly, and stay.
- `gemm`: the fault library makes some products of a node wrong. The node must multiply, and be replaced.
- `clock`: a GPU of a node runs at 90 % of its clock (the C library of tests/nvml), in half of the runs with
  the driver's bit for heat. The GPU must be named.
- `clean`: a rank ends with an error of the script. Nobody must be named.

All clocks wander by two steps of 15 MHz all the time. Any other node that is evicted or cordoned, and any
other rank, node or GPU that is named, counts as wrong.

With a file to resume from, each run is a line of it as soon as it is over. The next start leaves out the runs
of the same seed and number that are in it. What happens to whom in a run depends on nothing but both.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from machinecheck.site import Answer, Site  # noqa: E402  # the library of the tests needs the root
from pulsetrain import faults  # noqa: E402
from pulsetrain.faults import arithmetic  # noqa: E402
from pulsetrain.protocol.client import find_hub  # noqa: E402
from pulsetrain.stream.store.clickhouse import open_store  # noqa: E402
from tests.nvml.library import TestDriver  # noqa: E402

SCRIPT = Path(__file__).with_name("job.py")
STARTUP = Path(faults.__file__).parent / "startup"
KINDS = ("nan", "gemm", "clock", "clean")
NODES, SPARE = ("a", "b", "c"), "d"
GPUS = 2
CLOCK_MHZ, STEP_MHZ, DROP = 1980, 15, 0.9
HEAT = 0x20  # nvml.h: nvmlClocksEventReasonSwThermalSlowdown
EVERY = (4, 9)  # the self-check multiplies three times, so it sees nothing
FOUND_S, READY_S = 150.0, 150.0  # a hub on busy cores looks at machines once in a minute or less often
NAMING = ("nan", "throttle", "wrong_arithmetic", "gpu_fault", "bad_link")
CONFIG = """
[controller]
evictions_per_hour = 1000
probation_s = 1.0
min_healthy_ratio = 0.3
arithmetic_check_s = 1.0
"""


def until(holds: Callable[[], bool], limit_s: float) -> bool:
    """Whether it held in time."""
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        if holds():
            return True
        time.sleep(0.1)
    return False


class Clocks:
    """Clocks of all GPUs, which wander. `drop` makes one of them slow."""

    def __init__(self, seed: int) -> None:
        self.drivers: dict[str, TestDriver] = {}
        self._slow: tuple[str, int] | None = None
        self._draw, self._stop = random.Random(seed), threading.Event()
        self._thread = threading.Thread(target=self._wander, daemon=True)
        self._thread.start()

    def drop(self, node: str, gpu: int, *, heat: bool) -> None:
        """A GPU runs at `DROP` of its clock, with the driver's reason if there is `heat`."""
        self._slow = (node, gpu)
        self.drivers[node].set(gpu, temperature=88, event_reasons=HEAT if heat else 0)

    def heal(self, node: str, gpu: int) -> None:
        """It is as it was."""
        self._slow = None
        self.drivers[node].set(gpu, temperature=60, event_reasons=0)

    def close(self) -> None:
        """Leave the clocks alone."""
        self._stop.set()
        self._thread.join()

    def _wander(self) -> None:
        while not self._stop.wait(0.5):
            for node, driver in list(self.drivers.items()):
                for gpu in range(GPUS):
                    share = DROP if self._slow == (node, gpu) else 1.0
                    driver.set(gpu, clock_sm=CLOCK_MHZ * share + STEP_MHZ * self._draw.randint(-2, 2))


class Cluster(Site):
    """A hub, three nodes of one rank, a standby. A node that was evicted comes back as the standby."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, CONFIG)
        self.plan, self.clocks = folder / "plan", Clocks(seed)
        until(lambda: self.ask(lambda hub: hub.status()) is not None, 90)
        for name in NODES:
            self.start(name, "run")
        until(lambda: self.job().get("step", -1) >= 5, 120)
        self.start(SPARE, "agent", "--standby")

    def start(self, name: str, *verb: str) -> None:
        """Start a node that is well."""
        self.wrong_products(name).unlink(missing_ok=True)
        driver = TestDriver(self.folder / f"driver-{name}-{time.time_ns()}", GPUS, name)
        self.clocks.drivers[name] = driver
        flags = ("--job", "j", "--node", name, "--nnodes", str(len(NODES)), "--nproc-per-node", "1")
        log = ("--max-restarts", "1000000", "--log-dir", str(self.folder / name))
        fault = {"PYTHONPATH": str(STARTUP), arithmetic.ENVIRONMENT: str(self.wrong_products(name))}
        self.agents[name] = self.spawn(
            driver.environ | fault, *verb, *flags, *log, str(SCRIPT), str(self.plan)
        )

    def wrong_products(self, name: str) -> Path:
        """While this file is there, products of the node are wrong now and then."""
        return self.folder / f"wrong-{name}"

    def named(self) -> set[tuple[str, str]]:
        """Kind and subject of what accuses somebody now.

        What analyzers say of machines belongs to no attempt. So it is among the detectors, not the findings.
        """
        job = self.job()
        said = [d for d in job.get("detectors", []) if d["state"] == "finding"]
        return {(f["kind"], f["subject"]) for f in (*job.get("findings", []), *said) if f["kind"] in NAMING}

    def ready(self) -> bool:
        """The job trains, nothing is named, and there is somebody to replace a node."""
        job, rows = self.job(), self.nodes()
        spare = [r for r in rows.values() if r["state"] == "standby" and not r["cordon"]]
        trains = job.get("state") == "running" and job.get("step", -1) >= 10
        return trains and len(self.world()) == len(NODES) and bool(spare) and not self.named()

    def world(self) -> list[str]:
        """Nodes that train, in the order of their ranks."""
        rows = [r for r in self.nodes().values() if r["state"] == "active"]
        return [r["node"] for r in sorted(rows, key=lambda r: r["node_rank"])]

    def events(self, kind: str, after: int) -> list[Answer]:
        """Node and detail of stored events of one kind of attempts from `after` on."""
        address = find_hub(environ=self.env)
        store = open_store(address.url, token=address.token)
        try:
            rows = store.query(
                "SELECT node, detail FROM events WHERE kind = {kind:String} AND attempt >= {after:Int64} "
                "ORDER BY ts",
                {"kind": kind, "after": after},
            ).to_pylist()
            return [{"node": r["node"], **json.loads(r["detail"])} for r in rows]
        finally:
            store.close()

    def close(self) -> None:
        """End everything."""
        self.clocks.close()
        super().close()


@dataclass(kw_only=True)
class Run:
    """One run: what happened to whom, whether it was found, and who was accused wrongly.

    `found` is None in a clean run: there is nothing to find.
    """

    number: int
    kind: str
    node: str
    found: bool | None = False
    wrong: list[str] = field(default_factory=list)
    note: str = ""
    seconds: float = 0.0


class Player:
    """Plays runs on one cluster."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster, self.seed = cluster, seed
        self._draw = random.Random(seed)
        self._seen: set[tuple[str, str]] = set()

    def play(self, number: int, kind: str) -> Run:
        """One run, from a job that trains to a job that trains again."""
        cluster, began_s = self._cluster, time.monotonic()
        self._draw = random.Random(f"{self.seed}/{number}")
        if not until(cluster.ready, READY_S):
            return Run(number=number, kind=kind, node="", note=f"the job was not ready: {cluster.job()}")
        world, attempt = cluster.world(), int(cluster.job()["attempt"])
        rank = self._draw.randrange(len(world))
        run, self._seen = Run(number=number, kind=kind, node=world[rank]), set()
        allowed = getattr(self, f"_{kind}")(run, rank, attempt)
        until(lambda: self._look() or cluster.job().get("state") == "running", READY_S)
        evictions = {e["node"]: e.get("reason", "") for e in cluster.events("evict", attempt)}
        evicted = list(evictions)
        cordoned = [e["node"] for e in cluster.events("cordon", attempt)]
        gone = [n for n in evicted if (kind, n) != ("gemm", run.node)]
        held = [n for n in cordoned if n != run.node]
        run.wrong = [f"{k} {s}" for k, s in sorted(self._seen - allowed)]
        run.wrong += [f"evict {n}: {evictions[n]}" for n in gone] + [f"cordon {n}" for n in held]
        for name in evicted:
            cluster.agents[name].wait(timeout=60)
            cluster.start(name, "agent", "--standby")
        run.seconds = round(time.monotonic() - began_s, 1)
        return run

    def _look(self) -> bool:
        """Note who is named now. Never true, so that it can stand before a condition."""
        self._seen |= self._cluster.named()
        return False

    def _wait(self, holds: Callable[[], bool]) -> bool:
        return until(lambda: self._look() or holds(), FOUND_S)

    def _tell(self, rank: int, attempt: int, *, step: int = -1, end: str = "") -> None:
        file = self._cluster.plan
        new = file.with_suffix(".new")
        new.write_text(json.dumps({"rank": rank, "attempt": attempt, "step": step, "end": end}))
        new.replace(file)

    def _stop(self, rank: int, attempt: int, why: str) -> None:
        """A rank ends with an error. Returns when the job trains again, or not."""
        self._tell(rank, attempt, end=why)
        cluster = self._cluster
        self._wait(lambda: int(cluster.job().get("attempt", 0)) > attempt)
        self._wait(lambda: cluster.job().get("state") == "running")
        cluster.plan.unlink(missing_ok=True)

    def _nan(self, run: Run, rank: int, attempt: int) -> set[tuple[str, str]]:
        accused = ("nan", str(rank))
        self._tell(rank, attempt, step=0)
        named = self._wait(lambda: accused in self._seen)
        self._stop(rank, attempt, "the loss is nan")
        checked = [e for e in self._cluster.events("arithmetic_check", attempt) if run.node in e["nodes"]]
        run.found = named and bool(checked) and not any(e["wrong"] for e in checked)
        run.note = f"named {named}, checked {[e['nodes'] for e in checked]}"
        return {accused}

    def _gemm(self, run: Run, rank: int, attempt: int) -> set[tuple[str, str]]:
        accused = {("nan", str(rank)), ("wrong_arithmetic", run.node)}
        arithmetic.begin(self._cluster.wrong_products(run.node), every=self._draw.randint(*EVERY))
        named = self._wait(lambda: ("nan", str(rank)) in self._seen)
        self._stop(rank, attempt, "the loss is nan")
        checks = self._cluster.events("arithmetic_check", attempt)
        wrong = {node for check in checks for node in check["wrong"]}
        gone = self._wait(lambda: run.node not in self._cluster.world())
        run.found = named and wrong == {run.node} and gone
        run.note = f"named {named}, wrong {sorted(wrong)}, replaced {gone}"
        return accused

    def _clock(self, run: Run, rank: int, attempt: int) -> set[tuple[str, str]]:
        gpu, heat = self._draw.randrange(GPUS), self._draw.random() < 0.5
        accused = ("throttle", f"{run.node}/GPU-{run.node}{gpu}")
        time.sleep(5.0)  # what the clock was before is learned from some seconds
        self._cluster.clocks.drop(run.node, gpu, heat=heat)
        run.found = self._wait(lambda: accused in self._seen)
        self._cluster.clocks.heal(run.node, gpu)
        run.note = f"with a reason of the driver: {heat}"
        self._wait(lambda: accused not in self._cluster.named())
        return {accused}

    def _clean(self, run: Run, rank: int, attempt: int) -> set[tuple[str, str]]:
        self._stop(rank, attempt, "the data set has ended")
        run.found = None
        return set()


def kinds_of(runs: int, draw: random.Random) -> list[str]:
    """Kinds of runs, each about equally often, in random order."""
    kinds = [KINDS[i % len(KINDS)] for i in range(runs)]
    draw.shuffle(kinds)
    return kinds


def summary(runs: list[Run]) -> Answer:
    """The counts, by kind and together, and the runs that were not as they should be."""
    by_kind = {kind: [r for r in runs if r.kind == kind] for kind in KINDS}
    return {
        "runs": len(runs),
        "by_kind": {
            kind: {
                "runs": len(own),
                "found": sum(r.found is True for r in own),
                "wrong": sum(bool(r.wrong) for r in own),
            }
            for kind, own in by_kind.items()
        },
        "healthy_evicted": sum(w.startswith("evict ") for r in runs for w in r.wrong),
        "runs_that_accuse_wrongly": sum(bool(r.wrong) for r in runs),
        "odd": [vars(r) for r in runs if r.found is False or r.wrong],
        "seconds": round(sum(r.seconds for r in runs), 1),
    }


def earlier(file: Path | None, kinds: list[str], seed: int) -> list[Run]:
    """The runs of this seed that the file has, by number. One that was not ready is played again.

    Raises `ValueError` for a file of runs of other kinds: they were drawn for another number of runs.
    """
    lines = file.read_text().splitlines() if file is not None and file.exists() else []
    rows = [row for row in map(json.loads, lines) if row.pop("seed") == seed and row["node"]]
    found = {row["number"]: Run(**row) for row in rows}
    for number, known in found.items():
        if number >= len(kinds) or kinds[number] != known.kind:
            raise ValueError(f"{file}: run {number} is of another set; give the same number of runs")
    return [found[number] for number in sorted(found)]


def keep(played: Run, seed: int, file: Path | None) -> None:
    """Print a run, and add it to the file if there is one."""
    line = json.dumps({"seed": seed, **vars(played)})
    print(line, file=sys.stderr, flush=True)
    if file is not None:
        with file.open("a") as lines:
            lines.write(line + "\n")


def run(runs: int, *, seed: int = 0, resume: Path | None = None, limit_s: float = float("inf")) -> Answer:
    """Play so many runs, one line on standard error for each. None begins after `limit_s`."""
    kinds = kinds_of(runs, random.Random(seed))
    played = earlier(resume, kinds, seed)
    known = {r.number for r in played}
    left = [number for number in range(runs) if number not in known]
    if left:
        with tempfile.TemporaryDirectory() as folder:
            cluster = Cluster(Path(folder), seed)
            try:
                played += _play(Player(cluster, seed), left, kinds, resume, limit_s)
            finally:
                cluster.close()
    return summary(sorted(played, key=lambda r: r.number))


def _play(player: Player, left: list[int], kinds: list[str], file: Path | None, limit_s: float) -> list[Run]:
    played, end_s = list[Run](), time.monotonic() + limit_s
    for number in left:
        if time.monotonic() > end_s or (played and not played[-1].node):
            break
        played.append(player.play(number, kinds[number]))
        keep(played[-1], player.seed, file)
    return played
