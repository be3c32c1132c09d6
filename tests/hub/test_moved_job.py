"""A real job is pre-empted, resumed and taken off a node. It ends as if nobody had touched it."""

import json
import random
import re

import pytest

from pulsetrain.protocol.client import find_hub
from pulsetrain.stream.store.clickhouse import open_store
from tests.agent.real_processes import until
from tests.hub.test_real_job import Site

pytestmark = [pytest.mark.paired, pytest.mark.integration, pytest.mark.timeout(600)]

STEPS, MOVES = 1000, 3
SCRIPT = """
import hashlib, os, sys, time
import torch, torch.distributed as dist
import pulsetrain

dist.init_process_group("gloo")
pulse = pulsetrain.init()
torch.set_num_threads(1)  # else two runs may round otherwise from the first step on
torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
torch.manual_seed(1 + dist.get_rank())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
checkpointer = pulsetrain.Checkpointer({"model": model, "optimizer": optimizer}, every=50)
done = checkpointer.restore()
for step in range(0 if done is None else done + 1, int(sys.argv[1])):
    with pulse.phase("forward"):
        loss = model(torch.randn(16, 64)).square().mean()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    checkpointer.save(step)
    pulse.step()
    if dist.get_rank() == 0 and step % 20 == 19:
        print("at step", step, flush=True)
    time.sleep(0.02)
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
digest = hashlib.sha256(weights.numpy().tobytes()).hexdigest()
print("weights", dist.get_rank(), digest, flush=True)
dist.destroy_process_group()
"""


class Moved(Site):
    """A hub, two nodes of one rank each, and where wanted a standby."""

    def __init__(self, folder):
        folder.mkdir()
        super().__init__(folder)
        self.script.write_text(SCRIPT)
        self.start_hub()

    def start(self, *names, more=()):
        for name in names:
            self.nodes.append(
                self.spawn(
                    *("run", "--job", "j", "--node", name, "--nnodes", "2", "--nproc-per-node", "1"),
                    *("--log-dir", str(self.folder / name), *more, str(self.script), str(STEPS)),
                )
            )

    def end(self):
        """Somebody ends the job, as a scheduler does at the time limit."""
        for node in self.nodes:
            node.terminate()
        for node in self.nodes:
            node.wait(60)
        self.nodes.clear()

    def state(self):
        return (self.ask() or {}).get("state")

    def move(self, *arguments):
        assert self.spawn(*arguments, "--reason", "a test").wait(60) == 0

    def recoveries(self):
        return self.ask()["recoveries"]

    def events(self, kind):
        """Details of the stored events of a kind."""
        address = find_hub(environ=self.env)
        store = open_store(address.url, token=address.token)
        try:
            rows = store.query("SELECT detail FROM events WHERE kind = {kind:String}", {"kind": kind})
            return [json.loads(row["detail"]) for row in rows.to_pylist()]
        finally:
            store.close()

    def weights(self, at=("a", "b")):
        """Digest of each rank's parameters at the end, as the ranks printed them."""
        for node in self.nodes:
            node.wait(timeout=180)
        said = "".join(p.read_text() for n in at for p in (self.folder / n).rglob("*.out"))
        return dict(re.findall(r"weights (\d) (\w{64})", said))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    site = Moved(tmp_path_factory.mktemp("moves") / "undisturbed")
    site.start("a", "b")
    weights = site.weights()
    site.close()
    assert len(weights) == 2
    return weights


@pytest.fixture
def site(tmp_path):
    site = Moved(tmp_path / "site")
    yield site
    site.close()


def test_a_job_that_is_pre_empted_again_and_again_ends_with_the_same_parameters(site, undisturbed):
    site.start("a", "b")
    steps = sorted(random.Random(7).sample(range(5, STEPS - 650), MOVES))
    for step in steps:
        site.reach(step)
        if step == steps[0]:
            site.start("c", "d")
        site.move("preempt", "j")
        assert until(lambda: site.state() == "preempted")
        if step != steps[-1]:
            site.move("resume", "j")
        else:
            assert until(lambda: sum(node["connected"] for node in site.ask()["nodes"]) == 4, 60)
            site.move("resume", "j", "--nodes", "c,d")
        assert until(lambda: site.state() == "running", 90)
    assert until(lambda: len(site.recoveries()) == MOVES, 90)
    last = site.recoveries()[-1]
    assert site.weights(("c", "d")) == undisturbed
    assert (last["joined_nodes"], last["left_nodes"]) == (["c", "d"], ["a", "b"])
    told = site.events("preempted")
    assert len(told) == MOVES
    assert [event["lost_steps"] for event in told] == [0] * MOVES
    assert all(event["hold"]["acquired"] for event in told)
    assert max(event["hold"]["steps"] for event in told) <= 2


def test_a_job_that_is_taken_off_a_node_ends_with_the_same_parameters(site, undisturbed):
    site.start("a", "b")
    site.reach(10)
    site.start("z")
    assert until(lambda: any(n["node"] == "z" and not n["cordon"] for n in site.ask()["nodes"]), 60)
    site.move("migrate", "j", "--from", "b")
    assert until(lambda: bool(site.recoveries()), 90)
    [recovery] = site.recoveries()
    assert (recovery["cause"], recovery["node"]) == ("migration", "b")
    assert recovery["lost_steps"] <= 80  # two seconds: a copy reaches another node a little later
    assert site.weights(("a", "z")) == undisturbed


def test_a_job_that_is_ended_at_its_time_limit_goes_on_there_when_it_is_started_again(site, undisturbed):
    storage = ("--checkpoints", str(site.folder / "storage"))
    site.start("a", "b", more=storage)
    site.reach(60)
    site.end()
    assert until(lambda: site.state() == "failed")
    ended_after = site.ask()["step"]
    site.start("a", "b", more=storage)
    assert until(lambda: site.state() == "running", 90)
    assert until(lambda: len(site.events("attempt_started")) == 2)
    restored = max(event["restore_step"] for event in site.events("attempt_started"))
    assert restored >= max(50, ended_after - 50)
    assert site.weights() == undisturbed
