"""A plain job is pre-empted by dumping its processes with CRIU. It ends as if nobody had touched it."""

import pytest

from pulsetrain.diagnostics import process_dump
from pulsetrain.protocol.client import find_hub
from pulsetrain.stream.store.clickhouse import open_store
from tests.agent.real_processes import until
from tests.hub.test_moved_job import Moved

pytestmark = [pytest.mark.paired, pytest.mark.integration, pytest.mark.timeout(600)]

STEPS = 600
SCRIPT = """
import hashlib, os, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(64, 64))
torch.manual_seed(1 + dist.get_rank())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for step in range(int(sys.argv[1])):
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    print("did", step, flush=True)
    time.sleep(0.02)
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
digest = hashlib.sha256(weights.numpy().tobytes()).hexdigest()
print("weights", dist.get_rank(), digest, flush=True)
dist.destroy_process_group()
"""


class Dumped(Moved):
    """A hub and one node of two ranks, which may be dumped."""

    def __init__(self, folder):
        super().__init__(folder)
        self.script.write_text(SCRIPT)
        (folder / "pulsetrain.toml").write_text('[agent]\nimages = "auto"\n')

    def begin(self):
        self.nodes.append(
            self.spawn(
                *("run", "--config", str(self.folder / "pulsetrain.toml"), "--job", "j", "--node", "a"),
                *("--nnodes", "1", "--nproc-per-node", "2"),
                *("--log-dir", str(self.folder / "a"), str(self.script), str(STEPS)),
            )
        )

    def steps(self):
        """The steps that each rank's output names, in order."""
        files = sorted((self.folder / "a").rglob("*.out"))
        said = [[int(w) for k, w in map(str.split, _pairs(f)) if k == "did"] for f in files]
        return [steps for steps in said if steps]

    def first_start_ns(self, attempt):
        """When the first step of an attempt began, as its ranks' records say."""
        address = find_hub(environ=self.env)
        store = open_store(address.url, token=address.token)
        try:
            rows = store.query(
                "SELECT toUnixTimestamp64Nano(min(start)) AS ns FROM steps WHERE attempt = {attempt:Int32}",
                {"attempt": attempt},
            )
            return rows.to_pylist()[0]["ns"]
        finally:
            store.close()


def _pairs(file):
    return [line for line in file.read_text().splitlines() if len(line.split()) == 2]


@pytest.fixture
def job(tmp_path):
    if lacks := process_dump.lacks():
        pytest.skip(f"{lacks}: run deploy/criu as root")
    made = []

    def start(name):
        made.append(Dumped(tmp_path / name))
        made[-1].begin()
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_a_plain_job_that_is_dumped_and_restored_twice_ends_with_the_same_parameters(job):
    expected = job("undisturbed").weights("a")
    moved = job("moved")
    for step in (40, 200):
        moved.reach(step)
        moved.move("preempt", "j")
        assert until(lambda: moved.state() == "preempted", 150), moved.ask()
        moved.move("resume", "j")
        assert until(lambda: moved.state() == "running", 120), moved.ask()
    assert moved.weights("a") == expected
    assert len(expected) == 2
    assert moved.steps() == [list(range(STEPS))] * 2
    told = moved.events("preempted")
    images = [event["image"] for event in told]
    assert [(event["lost_steps"], event["image"]["taken"]) for event in told] == [(0, True)] * 2
    assert all(image["stored_bytes"] < 0.75 * image["bytes"] for image in images)
    assert images[1]["new_bytes"] < 0.5 * images[1]["stored_bytes"]
    assert all(event["restore_ns"] > 0 for event in moved.events("image_restored"))
    began_ns = {attempt: moved.first_start_ns(attempt) for attempt in (0, 1, 2)}
    dumped_ns = sum(event["stages_ns"]["dump"] for event in told[:1])
    assert began_ns[1] - began_ns[0] > dumped_ns  # a clock that stood while the job was away is set right
