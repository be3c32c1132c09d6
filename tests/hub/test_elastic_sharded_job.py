"""Real jobs with sharded state: a whole replica is lost without a standby, and comes back."""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from tests.agent.real_processes import until
from tests.hub.test_elastic_job import Elastic
from tests.repository import ROOT

pytestmark = [pytest.mark.paired, pytest.mark.integration, pytest.mark.timeout(600)]

SAMPLES, BATCH, LAST_STEPS = 6400, 16, 30

FSDP = """
import hashlib, sys, time
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import pulsetrain

dist.init_process_group("gloo")
torch.set_num_threads(1)
watch = pulsetrain.init()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(10, 18), torch.nn.Tanh(), torch.nn.Linear(18, 3))
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
checkpointer = pulsetrain.Checkpointer({"model": model, "optimizer": optimizer})
done = checkpointer.restore()
if len(sys.argv) > 2 and done is not None:
    whole = [p.full_tensor().detach() for p in model.parameters()]
    whole += [s["exp_avg"].full_tensor() for s in optimizer.state.values()]
    print("restored", done, dist.get_world_size(), [float(p.double().sum()) for p in whole], flush=True)
for step in range(0 if done is None else done + 1, int(sys.argv[1])):
    source = torch.Generator().manual_seed(step)
    loss = model(torch.randn(16, 10, generator=source)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    checkpointer.save(step)
    watch.step()
    time.sleep(0.03)
digest = hashlib.sha256(b"".join(p.full_tensor().detach().numpy().tobytes() for p in model.parameters()))
print("parameters", digest.hexdigest(), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


class Sharded(Elastic):
    """A hub, and nodes of two ranks each that run the example with tensor parallelism."""

    least, most, unit, pp = 1, 2, 1, 1

    def start(self, *names):
        for name in names:
            self.nodes.append(
                self.spawn(
                    *("run", "--job", "j", "--node", name, "--nnodes", f"{self.least}:{self.most}"),
                    *("--node-unit", str(self.unit), "--nproc-per-node", "2"),
                    *("--log-dir", str(self.folder / name), str(ROOT / "examples" / "train_gpt_elastic.py")),
                    *("--tp", "2", "--pp", str(self.pp), "--samples", str(SAMPLES), "--batch", str(BATCH)),
                    *("--pause", "0.02", "--record", str(self.folder / "ids")),
                )
            )
        return self.nodes[-1]

    def finishes(self):
        for node in self.nodes:
            assert node.wait(timeout=240) == 0
        said = "".join(p.read_text() for p in self.folder.rglob("*.out"))
        assert len(set(re.findall(r"parameters (\w{64})", said))) == 1
        assert self.samples_used() == Counter({(0, index): 1 for index in range(SAMPLES)})

    def losses(self):
        """The loss of each step on rank 0, and the number of ranks that did it, by the last attempt."""
        found = {}
        for file in sorted((self.folder / "ids").glob("attempt-*-rank-0.jsonl"), key=_attempt):
            for line in file.read_text().splitlines():
                row = json.loads(line)
                if "loss" in row:
                    found[row["step"]] = (row["world"], row["loss"])
        return dict(sorted(found.items()))

    def reference(self, losses):
        """The losses of rank 0 in processes whose number changes at the same steps. torch restores them.

        They end soon after the last change.
        """
        worlds = [world for world, _ in losses.values()]
        starts = [step for step, world in enumerate(worlds) if not step or worlds[step - 1] != world]
        found = {}
        for first, after in zip(starts, [*starts[1:], starts[-1] + LAST_STEPS], strict=True):
            env = os.environ | {"FOLDER": str(self.folder), "FIRST": str(first), "LAST": str(after - 1)}
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
            command += [str(worlds[first]), str(Path(__file__).with_name("sharded_reference.py"))]
            command += ["--tp", "2", "--pp", str(self.pp), "--samples", str(SAMPLES), "--batch", str(BATCH)]
            subprocess.run(command, env=env, check=True, timeout=300, stdout=self.log, stderr=self.log)
            said = (self.folder / f"losses-{first}-rank-0.json").read_text()
            found |= {int(step): loss for step, loss in json.loads(said).items()}
        return found


def _attempt(file):
    return int(re.match(r"attempt-(\d+)-", file.name)[1])


@pytest.fixture
def open_site(tmp_path):
    """Opens a site of a kind. It is closed after the test."""
    opened = []

    def open_site(kind):
        opened.append(kind(tmp_path / "site"))
        return opened[-1]

    yield open_site
    for site in opened:
        site.close()


@pytest.mark.long
def test_a_tensor_parallel_job_loses_a_replica_and_grows_when_it_is_back(open_site):
    site = open_site(Sharded)
    site.start("a")
    lost = site.start("b")
    site.reach(20)
    site.kill(lost)
    site.seconds_until(2)
    [shrunk] = (event for event in site.events("shrink"))
    assert (shrunk["from_ranks"], shrunk["to_ranks"], shrunk["left"]) == (4, 2, ["b"])
    site.start("b")
    assert until(lambda: site.connected("b"), 180)
    site.seconds_until(4)
    assert site.recoveries()[-1]["lost_steps"] <= 2
    assert all(event["storage_bytes"] == 0 for event in site.events("resharded"))
    site.finishes()
    losses = site.losses()
    assert {world for world, _ in losses.values()} == {2, 4}
    expected = site.reference(losses)
    assert len(expected) > LAST_STEPS
    assert expected == {step: losses[step][1] for step in expected}


class Pipelined(Sharded):
    """Two stages of two ranks each, twice: a replica is on two of the four nodes."""

    least, most, unit, pp = 2, 4, 2, 2


def test_a_job_of_three_dimensions_loses_a_node_and_grows_when_it_is_back(open_site):
    site = open_site(Pipelined)
    nodes = {name: site.start(name) for name in "abcd"}
    site.reach(20)
    site.kill(nodes["d"])
    site.seconds_until(4)
    [shrunk] = (event for event in site.events("shrink"))
    assert (shrunk["from_ranks"], shrunk["to_ranks"]) == (8, 4)
    site.start("d")
    assert until(lambda: site.connected("d"), 180)
    site.seconds_until(8)
    assert site.recoveries()[-1]["lost_steps"] <= 2
    assert all(event["storage_bytes"] == 0 for event in site.events("resharded"))
    site.finishes()


class FullyShardedJob(Sharded):
    """A script whose parameters are split over all ranks, two on each node."""

    source = FSDP

    def start(self, *names):
        self.script.write_text(self.source)
        for name in names:
            self.nodes.append(
                self.spawn(
                    *("run", "--job", "j", "--node", name, "--nnodes", "1:2", "--nproc-per-node", "2"),
                    *("--log-dir", str(self.folder / name), str(self.script), "600", "say"),
                )
            )
        return self.nodes[-1]

    def said(self, word):
        return [
            line.removeprefix(word).strip()
            for file in self.folder.rglob("*.out")
            for line in file.read_text().splitlines()
            if line.startswith(word)
        ]


def test_fully_sharded_parameters_of_four_ranks_go_on_in_two_and_again_in_four(open_site):
    site = open_site(FullyShardedJob)
    site.start("a")
    lost = site.start("b")
    site.reach(20)
    site.kill(lost)
    site.seconds_until(2)
    site.start("b")
    assert until(lambda: site.connected("b"), 180)
    site.seconds_until(4)
    for node in site.nodes:
        assert node.wait(timeout=240) == 0
    [digest] = set(site.said("parameters"))
    assert len({line.split()[1] for line in site.said("restored")}) == 2
    assert all(event["storage_bytes"] == 0 for event in site.events("resharded"))
    # Every rank computes the same batch, so that the mean of all gradients is that of one process.
    assert digest == undisturbed_digest(600)


class SizedByItsRanks(FullyShardedJob):
    """Such a script with a buffer that has an entry for each rank: it fits no other number of ranks."""

    source = FSDP.replace(
        "mesh = init", 'model.register_buffer("by_rank", torch.zeros(dist.get_world_size()))\nmesh = init'
    )


@pytest.mark.long
def test_a_job_whose_ranks_do_not_fit_another_size_tries_it_once_and_waits_for_its_node(open_site):
    site = open_site(SizedByItsRanks)
    site.start("a")
    lost = site.start("b")
    site.reach(20)
    site.kill(lost)
    assert until(lambda: bool(site.events("resize_refused")), 60)
    refused = site.events("resize_refused")[0]
    assert "by_rank: saved as float32 (4,), wanted as float32 (2,)" in refused["why_not"]
    assert until(lambda: (site.ask() or {}).get("state") == "waiting", 60)
    site.start("b")
    for node in site.nodes:
        assert node.wait(timeout=240) == 0
    assert len(site.said("parameters")) == 4
    assert len(set(site.said("parameters"))) == 1
    assert [r["to_ranks"] for r in site.events("shrink")] == [2]


def undisturbed_digest(steps):
    """The parameters after as many steps in one process, to the bits that sums of equal gradients keep."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(10, 18), torch.nn.Tanh(), torch.nn.Linear(18, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(steps):
        source = torch.Generator().manual_seed(step)
        model(torch.randn(16, 10, generator=source)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    parts = (p.detach().numpy().tobytes() for p in model.parameters())
    return hashlib.sha256(b"".join(parts)).hexdigest()
