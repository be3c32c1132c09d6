"""A GPU of a running job loses a tenth of its clock, and the driver says nothing of it: it is named alone.

Hub, agents and ranks are real processes. The GPUs are those of a C library of our own, which the agents load
as they would load NVIDIA's. Their clocks wander all the time. Power and temperature stay as they are.
"""

import random
import threading
import time

import pytest

from pulsetrain.protocol.client import HubClient, find_hub
from tests.agent.real_processes import until
from tests.hub.test_real_job import Site, opened
from tests.nvml.library import TestDriver

pytest.importorskip("pynvml")
pytestmark = [pytest.mark.long, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(400)]

NODES, GPUS = "ab", 4
CLOCK_MHZ, STEP_MHZ, DROP = 1980, 15, 0.9
CLEAN_S = 60.0
NAMED_S = 120.0  # it must last 10 s, and a hub on busy processors looks at machines once in a minute
LASTS_S = 100.0  # longer than the samples beside the newest steps reach back
ACCUSING = ("throttle", "gpu_fault", "gpu_hang", "pcie_degraded")


class Clocked(Site):
    """A hub and two nodes of one rank and four GPUs each. `slow` is a node and a GPU of it."""

    def __init__(self, folder):
        super().__init__(folder)
        self.slow, self.drivers = None, {n: TestDriver(folder / f"driver-{n}", GPUS, n) for n in NODES}
        self._draw, self._stop = random.Random(7), threading.Event()
        self._thread = threading.Thread(target=self._wander)
        self._thread.start()

    def start_nodes(self, steps=1_000_000):
        own = self.env
        for name in NODES:
            self.env = own | self.drivers[name].environ
            flags = ("--job", "j", "--node", name, "--nnodes", str(len(NODES)), "--nproc-per-node", "1")
            log = ("--log-dir", str(self.folder / name))
            self.nodes.append(self.spawn("run", *flags, *log, str(self.script), str(steps)))
        self.env = own

    def named(self):
        """What analyzers of machines say. It belongs to no attempt, so it is among the detectors."""
        job = self.ask() or {}
        said = [d for d in job.get("detectors", ()) if d["state"] == "finding"]
        return {(f["kind"], f["subject"]) for f in (*job.get("findings", ()), *said) if f["kind"] in ACCUSING}

    def alerts(self):
        found = HubClient(find_hub(environ=self.env)).alerts()
        return {(a["kind"], a["subject"]) for a in found if a["state"] == "firing" and a["kind"] in ACCUSING}

    def keep(self, named, seconds):
        """Who is named as soon as it is somebody else than `named`, or after these seconds."""
        end_s, found = time.monotonic() + seconds, named
        while found == named and time.monotonic() < end_s:
            time.sleep(1.0)  # a hub that is asked all the time looks at nothing
            found = self.named()
        return found

    def rows(self):
        return {row["node"]: row for row in HubClient(find_hub(environ=self.env)).nodes()}

    def close(self):
        self._stop.set()
        self._thread.join()
        super().close()

    def _wander(self):
        while not self._stop.wait(0.5):
            for node, driver in self.drivers.items():
                for gpu in range(GPUS):
                    share = DROP if self.slow == (node, gpu) else 1.0
                    driver.set(gpu, clock_sm=CLOCK_MHZ * share + STEP_MHZ * self._draw.randint(-2, 2))


@pytest.fixture
def site(tmp_path):
    with opened(Clocked(tmp_path)) as site:
        yield site


def test_the_gpu_whose_clock_fell_is_named_and_nobody_else_before_and_after(site):
    site.start_nodes()
    site.reach(10)
    assert site.keep(set(), CLEAN_S) == set()

    began_s = time.monotonic()
    site.slow = ("b", 2)
    slow = {("throttle", "b/GPU-b2")}
    assert site.keep(set(), NAMED_S) == slow
    print(f"named {time.monotonic() - began_s:.0f} s after the clock fell")

    assert until(lambda: site.alerts() == slow, NAMED_S), site.alerts()
    assert site.keep(slow, LASTS_S) == slow
    assert {name: (row["state"], row["cordon"]) for name, row in site.rows().items()} == {
        "a": ("active", ""), "b": ("active", ""),
    }  # fmt: skip
    assert site.ask()["attempt"] == 0

    site.slow = None
    assert site.keep(slow, NAMED_S) == set()
