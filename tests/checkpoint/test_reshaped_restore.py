"""A training process gets its state from what ranks of another world have saved."""

import os

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from pulsetrain.checkpoint.checkpointer import Checkpointer
from pulsetrain.core.errors import NotReshardable
from pulsetrain.elastic import ElasticSampler
from tests.checkpoint.cluster import Cluster
from tests.checkpoint.extra_state import extra_of, layers
from tests.checkpoint.resharding.test_node_resharding import start

pytestmark = pytest.mark.integration


@pytest.fixture
def cluster(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    c = Cluster(1)
    yield c
    c.close()
    dist.destroy_process_group()


class Job:
    """A script with one sharded and one whole parameter."""

    def __init__(self, fd, *, attempt=0, step=-1, width=6, world=1, make=torch.optim.AdamW, more=None):
        mesh = init_device_mesh("cpu", (1,))
        torch.manual_seed(attempt)
        self.model = torch.nn.Linear(width, 4)
        weight = distribute_tensor(self.model.weight.detach().clone(), mesh, [Shard(0)])
        self.model.weight = torch.nn.Parameter(weight)
        self.optimizer = make(self.model.parameters(), lr=0.1 + attempt)
        self.sampler = ElasticSampler(100, batch=10)
        self.state = {
            "model": self.model, "optimizer": self.optimizer, "sampler": self.sampler, "seen": attempt,
            **(more(self.model) if more else {}),
        }  # fmt: skip
        environ = {
            "RANK": "0", "WORLD_SIZE": str(world), "PULSETRAIN_ARENA_FD": str(fd),
            "PULSETRAIN_ATTEMPT": str(attempt), "PULSETRAIN_RESTORE_STEP": str(step),
        }  # fmt: skip
        self.checkpointer = Checkpointer(self.state, environ=environ, blocking=True)

    def train(self):
        for parameter in self.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        self.optimizer.step()
        self.sampler.advance(next(iter(self.sampler)))
        self.state["seen"] = 42

    def tensors(self):
        moments = [m for p in self.model.parameters() for m in self.optimizer.state[p].values()]
        whole = [*self.model.parameters(), *moments]
        return [getattr(t, "full_tensor", lambda t=t: t)().detach().clone() for t in whole]


def saved_by_two(cluster):
    """A job of two ranks that has saved step 5. One rank goes on from it, and is offered its part."""
    old = Job(cluster.fds[0], world=2)
    old.train()
    old.checkpointer.save(5).wait_finished()
    old.checkpointer.close()
    cluster.set_world(["n0"], 1)
    cluster.services["n0"].reshard([0], start({0: "peer:n0"}, world=2))
    return old


def test_model_optimizer_sampler_and_numbers_come_back(cluster):
    old = saved_by_two(cluster)
    new = Job(cluster.fds[0], attempt=1, step=5)
    assert new.checkpointer.restore() == 5
    assert all(torch.equal(a, b) for a, b in zip(old.tensors(), new.tensors(), strict=True))
    assert new.sampler.consumed == 10
    assert (new.state["seen"], new.optimizer.param_groups[0]["lr"]) == (42, 0.1)
    [held] = [h for h in cluster.services["n0"].held() if h.attempt == 1]
    assert (held.world, held.step) == (1, 5)
    new.checkpointer.close()


def test_a_model_of_another_size_is_refused_with_the_name_of_the_tensor(cluster):
    saved_by_two(cluster)
    new = Job(cluster.fds[0], attempt=1, step=5, width=7)
    assert cluster.services["n0"].not_reshardable(0) == ""
    with pytest.raises(NotReshardable, match=r"model\.weight: saved as float32 \(4, 6\)"):
        new.checkpointer.restore()
    assert "saved as float32 (4, 6)" in cluster.services["n0"].not_reshardable(0)
    cluster.set_world(["n0"], 2)
    assert cluster.services["n0"].not_reshardable(0) == ""
    new.checkpointer.close()


def test_a_state_that_a_loader_of_the_script_does_not_take_is_refused_too(cluster, monkeypatch):
    def refuses(self, state):
        raise ValueError("consumed = 10: not a multiple of 3 ranks")

    saved_by_two(cluster)
    new = Job(cluster.fds[0], attempt=1, step=5)
    monkeypatch.setattr(ElasticSampler, "load_state_dict", refuses)
    with pytest.raises(NotReshardable, match="ValueError: consumed = 10"):
        new.checkpointer.restore()
    assert "consumed = 10" in cluster.services["n0"].not_reshardable(0)
    new.checkpointer.close()


def test_a_rank_that_is_offered_nothing_restores_its_own(cluster):
    old = Job(cluster.fds[0])
    old.train()
    old.checkpointer.save(5).wait_finished()
    again = Job(os.dup(cluster.fds[0]), attempt=1, step=5)
    assert again.checkpointer.restore() == 5
    assert all(torch.equal(a, b) for a, b in zip(old.tensors(), again.tensors(), strict=True))
    old.checkpointer.close()
    again.checkpointer.close()


class Counting(torch.optim.Optimizer):
    """Keeps a number, and shards of its own in a list."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    def step(self):
        for parameter in self.param_groups[0]["params"]:
            state = self.state.setdefault(parameter, {"step": 0, "factors": [parameter.detach() * 2]})
            state["step"] += 1
        self.state["rounds"] = {"count": 3}


class Ema:
    """Shadows that are sharded as parameters are, and a generator that refuses a state that is none."""

    def __init__(self, model):
        self.generator = torch.Generator()
        self.shadows = {name: p.detach().clone() for name, p in model.named_parameters()}

    def state_dict(self):
        return {"shadows": self.shadows, "generator": self.generator.get_state()}

    def load_state_dict(self, saved):
        self.generator.set_state(saved["generator"])
        for name, shadow in self.shadows.items():
            getattr(shadow, "_local_tensor", shadow).copy_(saved["shadows"][name])


def resized(cluster, **options):
    """A job that has trained and saved, and one of another size that has restored that."""
    old = Job(cluster.fds[0], world=2, **options)
    old.train()
    old.checkpointer.save(5).wait_finished()
    old.checkpointer.close()
    cluster.set_world(["n0"], 1)
    cluster.services["n0"].reshard([0], start({0: "peer:n0"}, world=2))
    new = Job(cluster.fds[0], attempt=1, step=5, **options)
    assert new.checkpointer.restore() == 5
    return old, new


def test_an_optimizer_gets_its_numbers_and_lists_back(cluster):
    old, new = resized(cluster, make=Counting)
    for before, now in zip(old.model.parameters(), new.model.parameters(), strict=True):
        assert new.optimizer.state[now]["step"] == 1
        [was], [found] = old.optimizer.state[before]["factors"], new.optimizer.state[now]["factors"]
        assert torch.equal(*(getattr(t, "full_tensor", lambda t=t: t)() for t in (was, found)))
        assert type(found) is type(was)
    assert new.optimizer.state["rounds"] == {"count": 3}
    new.train()
    new.checkpointer.close()


def test_an_object_with_tensors_gets_them_once_and_no_zeros_before(cluster):
    old, new = resized(cluster, more=lambda model: {"ema": Ema(model)})
    ema, expected = new.state["ema"], old.state["ema"]
    assert torch.equal(ema.generator.get_state(), expected.generator.get_state())
    for name, shadow in ema.shadows.items():
        assert torch.equal(
            *(getattr(t, "full_tensor", lambda t=t: t)() for t in (shadow, expected.shadows[name]))
        )
    new.checkpointer.close()


def test_extra_state_of_modules_comes_back(cluster):
    made = iter([layers(7, "long"), layers()])
    old, new = resized(cluster, more=lambda _: {"layers": next(made)})
    assert extra_of(new.state["layers"]) == (7, [7.0] * 3, "long")
    assert torch.equal(new.state["layers"]["scaled"].weight, old.state["layers"]["scaled"].weight)
    new.checkpointer.close()
