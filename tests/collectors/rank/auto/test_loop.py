"""Steps, phases, losses and tokens of training loops in which not a line is ours."""

from __future__ import annotations

import copy
import io
import json
import threading
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from pulsetrain.collectors.rank.auto import graph, scales
from pulsetrain.collectors.rank.auto.loop import GRAPHS_NS
from pulsetrain.collectors.rank.handle import Handle
from pulsetrain.collectors.rank.numbers import KnownNumber

TOKENS = torch.arange(64).reshape(8, 8) % 11


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 4), nn.Linear(4, 11)

    def forward(self, tokens):
        return self.head(self.embed(tokens))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


@pytest.fixture
def optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def loss_of(model, tokens):
    return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def loader(batch=2):
    return DataLoader(TensorDataset(TOKENS), batch_size=batch)


def phases(watched):
    return [name for name, _ in watched.spans()]


def steps(watched, auto):
    """(step, tokens, loss) of the steps, the last one too."""
    auto.loop.finish()
    return [(int(s["step"]), int(s["tokens"]), round(float(s["loss"]), 6)) for s in watched.reader.drain()[1]]


def described(watched):
    return json.loads(watched.reader.description())


def test_a_plain_loop_over_a_loader(watched, auto, model, optimizer):
    printed = []
    for (tokens,) in loader():
        optimizer.zero_grad()
        loss = loss_of(model, tokens)
        loss.backward()
        optimizer.step()
        printed.append(round(loss.item(), 6))
    auto.loop.finish()
    spans, rows = watched.reader.drain()
    names = watched.reader.names
    assert [int(s["step"]) for s in rows] == [0, 1, 2, 3]
    assert [round(float(s["loss"]), 6) for s in rows] == printed
    assert [int(s["tokens"]) for s in rows] == [16] * 4
    assert float(rows[1]["flops"]) == 6 * 16 * sum(p.numel() for p in model.parameters())
    seen = [names[s["name"]] for s in spans]
    assert seen == ["data", "forward", "backward", "optimizer"] * 4 + ["data"]
    assert described(watched) == {
        "steps": "inferred",
        "phases": "inferred",
        "loss": "inferred",
        "tokens": "batch",
        "flops": "autograd graph",
    }
    assert float(rows[3]["flops"]) == 2 * 3 * 2 * 7 * 4 * 11  # of the head. A lookup has none
    assert watched.open() == []
    assert watched.errors == 0


def test_without_a_loader_forward_begins_behind_the_optimizer(watched, auto, model, optimizer):
    for _ in range(3):
        loss_of(model, TOKENS).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert phases(watched) == ["backward", "optimizer"] + ["forward", "backward", "optimizer"] * 2


def test_without_a_loader_the_tokens_are_what_the_model_looks_up(watched, auto, model, optimizer):
    for _ in range(5):
        for _ in range(2):
            (loss_of(model, TOKENS) / 2).backward()
        optimizer.step()
    assert [tokens for _, tokens, _ in steps(watched, auto)] == [0, 0, 112, 112, 112]
    assert described(watched)["tokens"] == "embedding"


def test_a_loss_in_pieces_counts_once_and_so_do_its_tokens(watched, auto, model, optimizer):
    """As in torchtitan, which goes backward from each piece to the hidden states, and then on from those."""
    wanted = []
    for _ in range(5):
        wanted.append(0.0)
        for tokens in TOKENS.chunk(2):
            hidden = model.embed(tokens[:, :-1])
            leaf = hidden.detach().requires_grad_()
            pieces = zip(leaf.chunk(4), tokens[:, 1:].chunk(4), strict=True)
            losses = [
                nn.functional.cross_entropy(model.head(h).flatten(0, 1), t.flatten()) / 8 for h, t in pieces
            ]
            for loss in losses:
                loss.backward()
            total = sum(loss.detach() for loss in losses)
            Whole.apply(hidden, leaf.grad, total).backward()
            wanted[-1] += total.item()
        optimizer.step()
        optimizer.zero_grad()
    found = steps(watched, auto)
    assert [loss for _, _, loss in found] == pytest.approx(wanted, abs=1e-5)
    assert [tokens for _, tokens, _ in found] == [0, 0, 56, 56, 56]


class Whole(torch.autograd.Function):
    """A loss whose gradient is known already."""

    @staticmethod
    def forward(ctx, hidden, gradient, loss):
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    def backward(ctx, _):
        return ctx.saved_tensors[0], None, None


def test_flops_follow_the_parameters_where_the_graph_hides_products(watched, auto, model, optimizer):
    def forward(tokens):
        return checkpoint(nn.functional.gelu, loss_of(model, tokens), use_reentrant=True)

    for (tokens,) in loader():
        forward(tokens).backward()
        optimizer.step()
    auto.loop.finish()
    parameters = sum(p.numel() for p in model.parameters())
    assert watched.reader.drain()[1]["flops"].tolist()[1:] == [6 * 16 * parameters] * 3
    assert described(watched)["flops"] == "parameters"


def test_updates_from_a_batch_that_was_fetched_before_have_flops(watched, auto, model, optimizer):
    """As in PPO, which trains several times on what it has sampled."""
    for (tokens,) in loader():
        for _ in range(2):
            loss_of(model, tokens).backward()
            optimizer.step()
            optimizer.zero_grad()
    auto.loop.finish()
    head = 2 * 3 * 2 * 7 * 4 * 11
    assert watched.reader.drain()[1]["flops"].tolist()[3:] == [head] * 5


def test_only_the_first_graphs_of_a_step_with_very_many_are_counted(
    watched, auto, model, optimizer, monkeypatch
):
    """As where the script ends a step once per epoch."""
    monkeypatch.setattr("pulsetrain.collectors.rank.auto.loop.MOST_GRAPHS", 2)
    counted = []
    monkeypatch.setattr(graph, "count", lambda roots, count=graph.count: counted.append(1) or count(roots))
    watched.handle.step()
    for _ in range(4):
        for _ in range(5):
            loss_of(model, TOKENS).backward()
            optimizer.step()
        watched.handle.step()
    assert len(counted) == 2
    head = 2 * 3 * 8 * 7 * 4 * 11
    assert watched.reader.drain()[1]["flops"].tolist()[2:] == [5 * head] * 3


@pytest.mark.parametrize("tokens", [TOKENS, TOKENS[:1]], ids=["alike", "different"])
def test_graphs_that_take_long_to_count_make_no_step_seconds_longer(
    watched, auto, model, optimizer, monkeypatch, tokens
):
    clock, counted = SimpleNamespace(ns=0), []

    def slow(roots, count=graph.count):
        clock.ns += GRAPHS_NS // 2
        counted.append(1)
        return count(roots)

    monkeypatch.setattr(graph, "count", slow)
    monkeypatch.setattr("pulsetrain.collectors.rank.auto.backward.perf_counter_ns", lambda: clock.ns)
    watched.handle.step()
    for _ in range(4):
        for i in range(5):
            loss_of(model, tokens if i == 1 else TOKENS).backward()
            optimizer.step()
        watched.handle.step()
    assert len(counted) == 2
    head = 2 * 3 * 8 * 7 * 4 * 11
    flops = watched.reader.drain()[1]["flops"].tolist()[2:]
    assert (flops == [5 * head] * 3) == (tokens is TOKENS)


def test_gradient_accumulation_is_one_step_and_its_losses_add_up(watched, auto, model, optimizer):
    wanted = []
    for i, (tokens,) in enumerate(loader(1)):
        loss = loss_of(model, tokens) / 4
        loss.backward()
        wanted.append(loss.item())
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    sums = [round(sum(wanted[:4]), 6), round(sum(wanted[4:]), 6)]
    auto.loop.finish()
    spans, rows = watched.reader.drain()
    assert [(int(s["step"]), int(s["tokens"])) for s in rows] == [(0, 32), (1, 32)]
    assert [float(s["loss"]) for s in rows] == pytest.approx(sums, abs=1e-5)
    names = [watched.reader.names[s["name"]] for s in spans]
    assert [names.count(name) for name in ("forward", "backward", "optimizer")] == [8, 8, 2]


def test_a_step_with_fewer_backward_passes_than_the_one_before_has_no_further_forward(
    watched, auto, model, optimizer
):
    for number, (tokens,) in enumerate(loader(1), 1):
        loss_of(model, tokens).backward()
        if number in (2, 4, 5):
            optimizer.step()
    assert phases(watched)[14:18] == ["data", "forward", "backward", "optimizer"]


@pytest.mark.parametrize("gradient", [torch.ones(()), [torch.ones(())], torch.full((1,), 0.5)])
def test_a_loss_may_be_given_a_gradient(watched, auto, model, optimizer, gradient):
    wanted = []
    for (tokens,) in loader():
        loss = loss_of(model, tokens).reshape(
            gradient[0].shape if isinstance(gradient, list) else gradient.shape
        )
        torch.autograd.backward(loss, grad_tensors=gradient)
        optimizer.step()
        wanted.append(loss.item())
    auto.loop.finish()
    assert watched.reader.drain()[1]["loss"].tolist() == pytest.approx(wanted, abs=1e-5)


def test_a_stage_without_a_loss_records_none(watched, auto, model, optimizer):
    for (tokens,) in loader():
        hidden = model[0](tokens) if isinstance(model, nn.Sequential) else loss_of(model, tokens).expand(3)
        torch.autograd.backward(hidden, grad_tensors=torch.ones_like(hidden))
        optimizer.step()
    auto.loop.finish()
    assert described(watched)["loss"] == "none"


def test_two_optimizers_in_turn_make_one_step(watched, auto):
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (critic, generator)]
    wanted = []
    for _ in range(4):
        parts = []
        for each in optimizers:
            loss = critic(generator(torch.ones(2, 4))).square().mean()
            loss.backward()
            each.step()
            parts.append(loss.item())
        wanted.append(sum(parts))
    rows = steps(watched, auto)
    assert [step for step, _, _ in rows] == [0, 1, 2, 3]
    assert [loss for _, _, loss in rows] == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("updates", [1, 2, 3])
def test_a_new_optimizer_for_each_update_or_for_some_is_the_one_before(watched, auto, model, updates):
    kept = []  # so that each has an address of its own
    for _ in range(4):
        kept.append(torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(updates):
            loss_of(model, TOKENS).backward()
            kept[-1].step()
    assert [step for step, _, _ in steps(watched, auto)] == list(range(4 * updates))


def test_new_optimizers_for_two_models_in_turn_make_one_step(watched, auto):
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    kept = []
    for _ in range(4):
        for part in (critic, generator):
            critic(generator(torch.ones(2, 4))).square().mean().backward()
            kept.append(torch.optim.SGD(part.parameters(), lr=0.1))
            kept[-1].step()
    assert [step for step, _, _ in steps(watched, auto)] == [0, 1, 2, 3]


def test_a_new_optimizer_for_what_is_trained_already_changes_no_sizes(auto, model):
    kept = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(3)]
    seen = []
    for optimizer in kept:
        loss_of(model, TOKENS).backward()
        optimizer.step()
        seen.append(auto.loop.trained)
    assert seen[1] is seen[0]
    assert seen[2] is seen[0]
    added = nn.Linear(4, 11)
    added(torch.ones(2, 4)).sum().backward()
    torch.optim.SGD(added.parameters(), lr=0.1).step()
    assert len(auto.loop.trained) == len(seen[0]) + 2


class Doubled(torch.optim.SGD):
    """Steps a second optimizer of the same parameters inside its own step."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, lr)
        self.inner = torch.optim.SGD(self.param_groups[0]["params"], lr)

    def step(self, closure=None):
        self.inner.step()
        return super().step(closure)


def test_an_optimizer_inside_one_of_the_same_parameters_is_a_part_of_it(watched, auto, model):
    optimizer = Doubled(model.parameters(), 0.1)
    for _ in range(3):
        loss_of(model, TOKENS).backward()
        optimizer.step()
    assert phases(watched).count("optimizer") == 3
    auto.loop.finish()
    assert watched.handle.state.step == 3


def test_an_outer_optimizer_behind_the_last_step_makes_no_step_of_its_own(watched, auto, model, optimizer):
    outer = torch.optim.SGD(model.parameters(), lr=0.7)  # of local SGD
    for number in range(8):
        loss_of(model, TOKENS[:2]).backward()
        optimizer.step()
        if number % 4 == 3:
            outer.step()
    assert [step for step, _, _ in steps(watched, auto)] == list(range(8))


def test_optimizers_inside_the_backward_pass_make_one_step(watched, auto, model):
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: optimizers[p].step())
    for _ in range(3):
        loss_of(model, TOKENS).backward()
        model.zero_grad()
    assert [step for step, _, _ in steps(watched, auto)] == [0, 1, 2]


def step_on_other_threads(model):
    """Step each parameter's own optimizer inside the backward pass, on another thread than the main one.

    So does the engine with the hooks of CUDA tensors. There is no CUDA here, so the thread is a fake.
    """
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def step(parameter):
        thread = threading.Thread(target=optimizers[parameter].step)
        thread.start()
        thread.join()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        loss_of(model, TOKENS).backward()
        model.zero_grad()


def test_optimizers_that_step_on_threads_of_the_engine_make_one_step(watched, auto, model, monkeypatch):
    monkeypatch.setattr(torch._C, "_current_graph_task_id", lambda: 0)
    step_on_other_threads(model)
    assert [step for step, _, _ in steps(watched, auto)] == [0, 1, 2]
    assert len(auto.loop.trained) == len(list(model.parameters()))
    assert watched.errors == 0


def test_a_step_of_a_thread_beside_a_backward_pass_is_no_part_of_it(watched, auto, model):
    step_on_other_threads(model)
    assert steps(watched, auto) == []


def test_the_scale_is_undone_and_a_step_that_the_scaler_leaves_out_is_a_step(watched, auto, model, optimizer):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    printed = []
    for i in range(4):
        optimizer.zero_grad()
        loss = loss_of(model, TOKENS)
        scaler.scale(loss).backward()
        if i == 2:
            model.head.weight.grad[0, 0] = torch.inf
        scaler.step(optimizer)
        scaler.update()
        printed.append(round(loss.item(), 6))
    rows = steps(watched, auto)
    assert [(step, loss) for step, _, loss in rows] == list(enumerate(printed))


@pytest.mark.parametrize("together", [False, True])
def test_the_scales_of_losses_that_are_scaled_before_either_goes_backward_are_undone(watched, auto, together):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    models = [nn.Linear(4, 1) for _ in range(2)]
    optimizer = torch.optim.SGD([p for m in models for p in m.parameters()], lr=0.1)
    wanted = []
    for _ in range(3):
        losses = [model(torch.ones(2, 4)).square().mean() for model in models]
        for scaled in scaler.scale(losses) if together else [scaler.scale(loss) for loss in losses]:
            scaled.backward()
        scaler.step(optimizer)
        scaler.update()
        wanted.append(sum(loss.item() for loss in losses))
    assert [loss for _, _, loss in steps(watched, auto)] == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(
    ("combined", "times"),
    [
        (lambda first, second: first + second, 2),
        (lambda first, second: (first + second) / 4, 0.5),
        (lambda first, _: first / 4, 0.25),
        (lambda first, second: torch.stack([first, second]).mean(), 1),
    ],
)
def test_the_scale_of_what_is_computed_of_scaled_losses_is_undone(
    watched, auto, model, optimizer, combined, times
):
    scaler, wanted = torch.amp.GradScaler("cpu", init_scale=1024.0), []
    for _ in range(3):
        losses = [loss_of(model, TOKENS) for _ in range(2)]
        combined(*[scaler.scale(loss) for loss in losses]).backward()
        scaler.step(optimizer)
        scaler.update()
        wanted.append(losses[0].item() * times)
    assert [loss for _, _, loss in steps(watched, auto)] == pytest.approx(wanted, abs=1e-5)
    assert watched.errors == 0


def test_a_loss_that_has_nothing_of_a_scaled_one_is_the_scripts(auto):
    losses = scales.Losses()
    first, second = (torch.full((), value, requires_grad=True) for value in (2.0, 3.0))
    losses.remember(first * 8, first)
    assert losses.of(second * 5, None).value() == 15
    assert losses.of(first * 0.0 + second * 5, None).value() == 15
    losses.remember(zero := first * 0 * 8, first * 0)
    assert losses.of(zero + second * 5, None).value() == 15, "of a loss of 0 nobody can tell the scale"


def test_a_scaled_loss_keeps_nothing_large_alive(auto):
    losses, each = scales.Losses(), torch.ones(10_000, requires_grad=True) * 2
    alive = weakref.ref(each)
    losses.remember(each[0] * 8, each[0])
    del each
    assert alive() is None
    assert losses._sums._known == {}


def test_a_loss_is_remembered_no_longer_than_what_was_scaled_and_of_no_more_than_some():
    losses = scales.Losses()
    kept = [torch.ones((), requires_grad=True) for _ in range(scales.MOST_SCALED + 1)]
    scaled = [loss * 8 for loss in kept]
    for pair in zip(scaled, kept, strict=True):
        losses.remember(*pair)
    losses.remember(large := torch.ones(5) * 8, torch.ones(5))
    assert losses.of(scaled[0], None).value() == 8  # the oldest of too many
    assert losses.of(scaled[1], None).value() == losses.of(scaled[1], None).value() == 1
    assert losses.of(large, None) is None
    del scaled, pair
    assert not losses._unscaled


class OwnScaler(torch.amp.GradScaler):
    """Scales by itself, as FSDP's sharded one does."""

    def __init__(self, factor):
        super().__init__("cpu", enabled=False)
        self.factor = factor

    def scale(self, outputs):
        return outputs * self.factor


def test_the_scale_of_a_scaler_with_its_own_is_undone(watched, auto, model, optimizer):
    printed = []
    scalers = [OwnScaler(65536.0), OwnScaler(2.0)]
    for scaler in scalers:
        loss = loss_of(model, TOKENS)
        scaler.scale(loss).backward()
        optimizer.step()
        printed.append(round(loss.item(), 6))
    assert [loss for _, _, loss in steps(watched, auto)] == printed


class OddScaler(OwnScaler):
    """Its `scale` has a signature of its own."""

    def scale(self, *, loss=None):
        return None if loss is None else loss * self.factor


def test_a_scale_with_a_signature_of_its_own_is_called_as_the_script_calls_it(auto):
    scaler = OddScaler(4.0)
    assert scaler.scale() is None
    assert float(scaler.scale(loss=torch.ones(()))) == 4.0


def test_the_sharded_scaler_of_fsdp_is_watched(auto):
    sharded = pytest.importorskip("torch.distributed.fsdp.sharded_grad_scaler").ShardedGradScaler
    before = sharded.scale
    try:
        sharded("cpu", enabled=False, process_group=None)
        assert sharded.scale is not before
    finally:
        sharded.scale = before


def test_a_closure_runs_forward_and_backward_inside_the_step(watched, auto, model):
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    evaluated = []

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, TOKENS)
        loss.backward()
        evaluated.append(loss.item())
        return loss

    returned = [round(optimizer.step(closure).item(), 6) for _ in range(2)]
    assert len(evaluated) > 2
    assert [(step, loss) for step, _, loss in steps(watched, auto)] == list(enumerate(returned))
    assert watched.errors == 0


def test_losses_that_no_optimizer_ever_takes_are_not_kept(watched, auto, model, optimizer, monkeypatch):
    """An attack, or an optimizer that is none of torch's."""
    monkeypatch.setattr("pulsetrain.collectors.rank.auto.loop.MOST_BACKWARDS", 5)
    kept = []
    for (tokens,) in loader(1):
        loss_of(model, tokens).backward()
        kept.append(len(auto.loop.since.losses))
    assert kept == [1, 2, 3, 4, 0, 0, 0, 0]


def test_losses_of_a_step_that_the_script_never_ends_are_not_kept(
    watched, auto, model, optimizer, monkeypatch
):
    """It has ended one itself, as in a first phase of its training."""
    monkeypatch.setattr("pulsetrain.collectors.rank.auto.loop.MOST_BACKWARDS", 5)
    watched.handle.step()
    kept = []
    for (tokens,) in loader(1):
        loss_of(model, tokens).backward()
        optimizer.step()
        kept.append(len(auto.loop.done.losses))
    assert kept == [1, 2, 3, 4, 0, 0, 0, 0]
    watched.handle.step()
    loss_of(model, TOKENS).backward()
    assert len(auto.loop.since.losses) == 1


def test_losses_before_a_step_with_a_closure_belong_to_it(watched, auto, model, optimizer):
    """Lightning accumulates so: only the last batch of a step is inside it."""
    wanted = []
    for _ in range(2):
        first = loss_of(model, TOKENS)
        first.backward()

        def closure():
            last = loss_of(model, TOKENS)
            last.backward()
            return last

        wanted.append(first.item() + optimizer.step(closure).item())
        optimizer.zero_grad()
    assert [loss for _, _, loss in steps(watched, auto)] == pytest.approx(wanted, abs=1e-5)


class Container(torch.optim.Optimizer):
    """Steps the optimizers inside it, and has no state of its own."""

    def __init__(self, inner):
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure=None):
        self.inner.step()


@pytest.mark.parametrize("around", [lambda inner: inner, Container], ids=["itself", "inside a container"])
def test_steps_go_on_from_what_the_optimizer_has_counted(watched, auto, model, optimizer, around):
    loss_of(model, TOKENS).backward()
    for state in (optimizer.state[p] for p in model.parameters()):
        state["step"] = torch.tensor(41.0)
        state["exp_avg"] = torch.zeros(1)
        state["exp_avg_sq"] = torch.zeros(1)
    for parameter in model.parameters():
        optimizer.state[parameter].update(
            exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter)
        )
    outer = around(optimizer)
    for _ in range(3):
        outer.step()
    assert [step for step, _, _ in steps(watched, auto)] == [41, 42, 43]


def test_a_graph_that_cannot_be_counted_costs_no_loss(watched, auto, model, optimizer, monkeypatch):
    monkeypatch.setattr("pulsetrain.collectors.rank.auto.graph.count", lambda tensors: {}["shape"])
    for (tokens,) in loader(1):
        loss_of(model, tokens).backward()
        optimizer.step()
    auto.loop.finish()
    rows = watched.reader.drain()[1]
    assert all(float(row["loss"]) > 0 for row in rows)


class Late:
    """A count on its way from a device."""

    def __init__(self, value):
        self.asked, self._value = 0, value

    def ready(self):
        self.asked += 1
        return self.asked > 1

    def value(self):
        return self._value


def test_a_count_that_arrives_after_the_first_step_numbers_that_step_too(
    watched, auto, model, optimizer, monkeypatch
):
    """So all ranks begin at the same number, whichever of them asked too early."""
    late = Late(5001.0)
    monkeypatch.setattr("pulsetrain.collectors.rank.auto.updates.count", lambda optimizer: late)
    for _ in range(3):
        loss_of(model, TOKENS).backward()
        optimizer.step()
    assert [step for step, *_ in steps(watched, auto)] == [5000, 5001, 5002]


@pytest.mark.parametrize("count", [25.0, Late(31.0)], ids=["skipped updates", "late"])
def test_the_step_of_the_checkpoint_that_was_read_wins_over_the_optimizers_count(
    watched, auto, model, optimizer, monkeypatch, count
):
    """A scaler leaves out updates, which the optimizer does not count. On a GPU its count arrives late."""
    known = KnownNumber(count) if isinstance(count, float) else count
    monkeypatch.setattr("pulsetrain.collectors.rank.auto.updates.count", lambda optimizer: known)
    watched.handle.continue_behind(30)
    for _ in range(3):
        loss_of(model, TOKENS).backward()
        optimizer.step()
    assert [step for step, *_ in steps(watched, auto)] == [31, 32, 33]


class OwnState(torch.optim.SGD):
    """Keeps a tensor where torch's own optimizers keep a dictionary."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter] = torch.zeros_like(parameter)


def test_an_optimizer_may_keep_a_tensor_as_its_state(watched, auto, model):
    optimizer = OwnState(model.parameters(), lr=0.1)
    for _ in range(3):
        loss_of(model, TOKENS).backward()
        optimizer.step()
    assert [step for step, *_ in steps(watched, auto)] == [0, 1, 2]
    assert watched.errors == 0


def test_steps_are_recorded_where_the_optimizer_cannot_be_asked(watched, auto, model, optimizer, monkeypatch):
    def fails(*_):
        raise RuntimeError("only dense CPU tensors can be pinned")

    monkeypatch.setattr("pulsetrain.collectors.rank.auto.updates.count", fails)
    for _ in range(3):
        loss_of(model, TOKENS).backward()
        optimizer.step()
    assert [step for step, *_ in steps(watched, auto)] == [0, 1, 2]
    assert watched.errors > 0


def test_the_scripts_own_steps_and_losses_win(watched, auto, model, optimizer):
    for (tokens,) in loader():
        loss = loss_of(model, tokens)
        loss.backward()
        optimizer.step()
        watched.handle.log(loss=5.0)
        watched.handle.step()
    assert steps(watched, auto) == [(0, 16, 5.0), (1, 16, 5.0), (2, 16, 5.0), (3, 16, 5.0)]
    assert described(watched)["steps"] == described(watched)["loss"] == "explicit"
    assert described(watched)["tokens"] == "batch"


def test_the_scripts_own_phases_win_and_the_others_are_inferred(watched, auto, model, optimizer):
    for (tokens,) in loader(4):
        with watched.handle.phase("forward"):
            loss = loss_of(model, tokens)
        loss.backward()
        optimizer.step()
        watched.handle.step()
    assert phases(watched) == ["data", "forward", "backward", "optimizer"] * 2 + ["data"]


def test_evaluation_of_the_trained_model_is_a_phase_and_of_another_is_not(watched, auto, model, optimizer):
    teacher = Model()
    for (tokens,) in loader(4):
        teacher.eval()
        loss_of(model, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            for (batch,) in loader(4):
                loss_of(model, batch)
        model.train()
    assert phases(watched) == ["data", "forward", "backward", "optimizer", "evaluation"] * 2 + ["data"]
    assert [tokens for _, tokens, _ in steps(watched, auto)] == []


class Hiding(torch.autograd.Function):
    """May hide products, as compiled code does."""

    @staticmethod
    def forward(ctx, loss):
        return loss.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def train_a_shard(model, forward=Hiding.apply):
    """Train a flat copy of a quarter of the model's numbers, as ZeRO does. Yields after each step."""
    shard = nn.Parameter(torch.zeros(sum(p.numel() for p in model.parameters()) // 4))
    optimizer = torch.optim.AdamW([shard])
    for (tokens,) in loader():
        forward(loss_of(model, tokens)).backward()
        shard.grad = torch.zeros_like(shard)
        optimizer.step()
        yield


def test_the_evaluation_of_a_model_is_seen_though_others_were_trained_before_it(watched, auto):
    kept = []
    for _ in range(4):
        model = Model()
        kept += [model, torch.optim.SGD(model.parameters(), lr=0.1)]
        for _ in range(120):
            loss_of(model, TOKENS[:1]).backward()
            kept[-1].step()
        model.eval()
        assert auto.segments.current == "evaluation"
        assert sum(auto.loop.trained.values()) == sum(p.numel() for p in model.parameters())
        model.train()
    kept[1].step()
    assert sum(auto.loop.trained.values()) == 2 * sum(p.numel() for p in kept[0].parameters())
    assert watched.errors == 0


def test_an_evaluation_is_seen_beside_another_threads(watched, auto, model, optimizer):
    class Slow(nn.Module):
        def train(self, mode=True):
            entered.set()
            assert left.wait(20)
            return super().train(mode)

    entered, left = threading.Event(), threading.Event()
    loss_of(model, TOKENS).backward()
    optimizer.step()
    thread = threading.Thread(target=nn.Sequential(Slow()).eval)
    thread.start()
    assert entered.wait(20)
    model.eval()
    assert auto.segments.current == "evaluation"
    left.set()
    thread.join()


def test_evaluation_is_seen_where_the_optimizer_trains_a_shard(watched, auto, model):
    seen = []
    for _ in train_a_shard(model):
        for module in (Model(), model):
            module.eval()
            seen.append(auto.segments.current)
            module.train()
    assert [name == "evaluation" for name in seen[-2:]] == [False, True]


def test_a_model_through_which_an_input_is_searched_is_not_trained(watched, auto, model):
    found = torch.ones(2, 4, requires_grad=True)
    optimizer = torch.optim.AdamW([found])
    for _ in range(4):
        Hiding.apply(model.head(found).sum()).backward()
        optimizer.step()
    model.eval()
    assert auto.segments.current != "evaluation"
    assert auto.loop.copied == {}


@pytest.mark.parametrize("hides", [False, True], ids=["whole", "recomputed"])
def test_flops_are_of_the_whole_model_where_the_optimizer_trains_a_shard(watched, auto, model, hides):
    def recomputed(loss):
        return checkpoint(torch.clone, loss, use_reentrant=True)

    list(train_a_shard(model, recomputed if hides else Hiding.apply))
    auto.loop.finish()
    flops = watched.reader.drain()[1]["flops"].tolist()[2:]
    whole = 6 * 16 * sum(p.numel() for p in model.parameters())
    assert flops == pytest.approx([float("nan") if hides else whole] * 2, nan_ok=True)


def train_and_evaluate(model, optimizer, evaluate):
    """Fetch the next batch before the model is put back into training mode, as transformers does."""
    iterator = iter(loader())
    batch = next(iterator)
    for _ in range(4):
        model.train()
        loss_of(model, batch[0]).backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            evaluate(model, iterator)
        batch = next(iterator, None)


def test_a_batch_that_is_fetched_before_train_is_called_ends_the_evaluation(watched, auto, model, optimizer):
    def evaluate(model, iterator):
        for (batch,) in loader(4):
            loss_of(model, batch)

    train_and_evaluate(model, optimizer, evaluate)
    auto.loop.finish()
    spans, rows = watched.reader.drain()
    assert rows["tokens"].tolist() == [16] * 4
    seen = [watched.reader.names[s["name"]] for s in spans]
    assert seen == ["data", "forward", "backward", "optimizer", "evaluation"] * 4 + ["data"]


def test_an_evaluation_may_use_batches_of_the_training(watched, auto, model, optimizer):
    iterator = iter(loader(1))
    for _ in range(4):
        loss_of(model, next(iterator)[0]).backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        next(iterator)
        assert auto.segments.current == "evaluation"
        model.train()
    assert [tokens for _, tokens, _ in steps(watched, auto)] == [8] * 4


@pytest.mark.parametrize("calls_eval", [True, False])
def test_batches_in_an_evaluation_that_the_script_marks_are_no_tokens_of_the_training(
    watched, auto, model, optimizer, calls_eval
):
    def evaluate(model, iterator):
        with watched.handle.phase("evaluation"):
            model.train(not calls_eval)
            for (batch,) in loader(4):
                loss_of(model, batch)

    train_and_evaluate(model, optimizer, evaluate)
    assert [tokens for _, tokens, _ in steps(watched, auto)] == [16] * 4


def test_batches_before_the_script_marks_its_evaluation_are_no_tokens_of_the_training(
    watched, auto, model, optimizer
):
    def evaluate(model, iterator):
        batches = iter(loader(4))
        next(batches)  # as Trainers do, whose callbacks learn of an evaluation behind its first batch
        with watched.handle.phase("evaluation"):
            next(batches)

    train_and_evaluate(model, optimizer, evaluate)
    assert [tokens for _, tokens, _ in steps(watched, auto)] == [16] * 4


def evaluate_each_batch(model, batches):
    """As pytorch-ignite does: the batch is there before the model is put into evaluation mode."""
    for (tokens,) in batches:
        model.eval()
        with torch.no_grad():
            loss_of(model, tokens)


def evaluate(model, batches):
    """As transformers does."""
    model.eval()
    for (tokens,) in batches:
        with torch.no_grad():
            loss_of(model, tokens)


def evaluate_both(model, batches):
    for loader_ in (batches, loader(batch=4)):
        evaluate_each_batch(model, loader_)


@pytest.mark.parametrize(
    "run",
    [
        lambda model, _: evaluate(model, loader(batch=4)),
        lambda model, _: evaluate_each_batch(model, loader(batch=4)),
        lambda model, _: evaluate_each_batch(model, loader(batch=8)),  # one batch
        evaluate,
        evaluate_each_batch,
        evaluate_both,
    ],
)
def test_a_step_behind_an_evaluation_has_the_tokens_that_it_trains_on(watched, auto, model, optimizer, run):
    batches = loader()
    for _ in range(3):
        for (tokens,) in batches:
            model.train()
            loss_of(model, tokens).backward()
            optimizer.step()
        run(model, batches)
    assert [tokens for _, tokens, _ in steps(watched, auto)] == [16] * 12
    assert watched.errors == 0


def test_an_evaluation_before_the_first_step_has_no_tokens_of_it(watched, auto, model, optimizer):
    evaluate(model, loader(batch=4))
    for (tokens,) in loader():
        loss_of(model.train(), tokens).backward()
        optimizer.step()
    assert [tokens for _, tokens, _ in steps(watched, auto)] == [16] * 4


def test_an_evaluation_of_averaged_weights_has_no_tokens_of_a_step(watched, auto, model, optimizer):
    average = torch.optim.swa_utils.AveragedModel(model)
    batches = loader()
    for _ in range(3):
        for (tokens,) in batches:
            loss_of(model, tokens).backward()
            optimizer.step()
            average.update_parameters(model)
        evaluate(average, loader(batch=4))
    assert [tokens for _, tokens, _ in steps(watched, auto)] == [16] * 12


def test_batches_of_two_loaders_that_are_trained_on_together_both_count(watched, auto, model, optimizer):
    for (first,), (second,) in zip(loader(1), loader(1), strict=True):
        loss_of(model, torch.cat([first, second])).backward()
        optimizer.step()
    assert [tokens for _, tokens, _ in steps(watched, auto)] == [16] * 8


def test_a_batch_that_was_fetched_before_an_evaluation_is_trained_on_after_it(
    watched, auto, model, optimizer
):
    for step, (tokens,) in enumerate(loader()):
        if step % 2:
            evaluate(model, loader(batch=4))
        loss_of(model.train(), tokens).backward()
        optimizer.step()
    assert [tokens for _, tokens, _ in steps(watched, auto)] == [16] * 4


def test_an_attempt_that_ended_in_an_evaluation_is_no_evaluation_of_the_next_one(
    watched, auto, model, optimizer
):
    watched.handle.phase("evaluation").__enter__()
    auto.loop.begin_again()
    watched.handle.begin_again()
    for (tokens,) in loader(4):
        loss_of(model, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
    auto.loop.finish()
    spans, rows = watched.reader.drain()
    assert rows["tokens"].tolist() == [32] * 2
    assert "forward" in [watched.reader.names[span["name"]] for span in spans]


def test_a_backward_that_raises_leaves_nothing_open_and_its_error_is_the_scripts(watched, auto, model):
    with pytest.raises(RuntimeError, match="grad can be implicitly created only for scalar outputs"):
        model(TOKENS).backward()
    assert not auto.loop.in_backward
    auto.segments.switch("")
    assert phases(watched) == ["backward"]


def test_models_and_optimizers_can_be_copied_and_saved_as_before(auto, model, optimizer):
    loss_of(model, TOKENS).backward()
    optimizer.step()
    buffer = io.BytesIO()
    torch.save((model, optimizer), buffer)
    buffer.seek(0)
    loaded, _ = torch.load(buffer, weights_only=False)
    assert torch.equal(loaded.head.weight, copy.deepcopy(model).head.weight)


def test_results_are_the_same_bits_as_without(auto):
    def train(watch):
        torch.manual_seed(3)
        model = Model()
        optimizer = torch.optim.AdamW(model.parameters())
        auto.handle.state, kept = (auto.handle.state if watch else None), auto.handle.state
        for (tokens,) in loader():
            loss_of(model, tokens).backward()
            optimizer.step()
        auto.handle.state = kept
        return model.head.weight

    assert torch.equal(train(True), train(False))


def test_a_state_that_torch_fills_in_to_load_another_is_no_step(watched, auto, model, optimizer):
    for _ in range(100):
        model.zero_grad()
        loss_of(model, TOKENS).backward()
        optimizer.step()
    auto.loop.finish()
    watched.reader.drain()
    saved = get_optimizer_state_dict(model, optimizer)
    auto.loop.begin_again()
    model.zero_grad()
    fresh = torch.optim.AdamW(model.parameters(), lr=1e-2)
    set_optimizer_state_dict(model, fresh, saved)
    assert auto.segments.current == ""
    assert fresh.param_groups[0]["lr"] == 1e-2
    for _ in range(3):
        model.zero_grad()
        loss_of(model, TOKENS).backward()
        fresh.step()
    assert [step for step, _, _ in steps(watched, auto)] == [100, 101, 102]
    assert (watched.errors, watched.reader.garbage) == (0, 0)


def test_another_thread_and_a_forked_child_are_not_watched(watched, auto, model, optimizer):
    def train():
        loss_of(model, TOKENS).backward()
        optimizer.step()

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    watched.handle.state, state = None, watched.handle.state
    train()
    watched.handle.state = state
    assert phases(watched) == []
    assert steps(watched, auto) == []


def test_a_script_that_called_init_and_never_step_gets_its_steps_after_a_while(
    watched, auto, model, optimizer
):
    watched.handle.script_calls = True
    for _ in range(6):
        loss_of(model, TOKENS).backward()
        optimizer.step()
    assert [step for step, _, _ in steps(watched, auto)] == [3, 4, 5]


def test_without_an_agent_nothing_is_made():
    assert Handle(None).description is None


def test_a_backward_pass_inside_compiled_code_is_seen(watched, auto, model, optimizer):
    torch._dynamo.reset()

    @torch.compile(backend="eager")
    def forward_backward(tokens):
        loss_of(model, tokens).backward()

    printed = []
    for _ in range(3):
        printed.append(round(loss_of(model, TOKENS).item(), 6))
        forward_backward(TOKENS)
        optimizer.step()
        optimizer.zero_grad()
    assert [loss for _, _, loss in steps(watched, auto)] == printed


def test_an_optimizer_step_that_is_compiled_as_a_whole_is_one_graph(auto, model, optimizer):
    def graphs():
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        compiled = torch.compile(lambda: optimizer.step(), backend="eager")
        for _ in range(3):
            loss_of(model, TOKENS).backward()
            compiled()
        return {k: dict(v) for k, v in torch._dynamo.utils.counters.items() if k in ("stats", "graph_break")}

    watched = graphs()
    auto.handle.state, state = None, auto.handle.state
    assert watched == graphs()
    auto.handle.state = state


def test_compiled_code_sees_none_of_it(auto, model, optimizer):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for (tokens,) in loader():
        loss_of(compiled, tokens).backward()
        optimizer.step()
    counters = torch._dynamo.utils.counters
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == 1


def test_a_device_that_failed_raises_in_the_script_and_not_in_our_hooks(auto, watched):
    def fails():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    auto.handle._timer = SimpleNamespace(capturing=fails)
    assert not auto.loop.listens
    assert watched.errors == 1


class OutOfMemory(torch.optim.SGD):
    """Fails in its first step, as one whose state does not fit."""

    failed = False

    @torch.no_grad()
    def step(self, closure=None):
        if not self.failed:
            self.failed = True
            raise RuntimeError("out of memory")
        return super().step(closure)


def test_steps_go_on_after_an_alarm_that_rang_while_the_rank_stood_still(watched, auto, model, optimizer):
    """A script may catch what its signal handler raises."""
    watched.handle.hold.raised = TimeoutError("the script's own alarm")
    with pytest.raises(TimeoutError, match="own alarm"):
        loss_of(model, TOKENS).backward()
    for _ in range(2):
        loss_of(model, TOKENS).backward()
        optimizer.step()
    assert [step for step, *_ in steps(watched, auto)] == [0, 1]


def test_a_backward_pass_that_was_interrupted_before_it_began_is_not_open(
    watched, auto, model, optimizer, monkeypatch
):
    """A signal handler of the script raises while the rank stands still, or anywhere in our hook."""

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(watched.handle, "hold_at_backward", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loss_of(model, TOKENS).backward()
    assert not auto.loop.in_backward
    for _ in range(2):
        loss_of(model, TOKENS).backward()
        optimizer.step()
    assert [step for step, *_ in steps(watched, auto)] == [0, 1]


def test_a_step_that_raised_hides_no_optimizer_that_comes_after(watched, auto, model):
    def train(optimizer):
        for (tokens,) in loader():
            loss_of(model, tokens).backward()
            optimizer.step()

    with pytest.raises(RuntimeError, match="out of memory"):
        train(OutOfMemory(model.parameters(), lr=0.1))
    train(torch.optim.SGD(model.parameters(), lr=0.1))
    assert [step for step, *_ in steps(watched, auto)] == [0, 1, 2, 3]


def test_an_optimizer_inside_one_that_trains_in_its_step_is_a_part_of_it(watched, auto, model):
    inner = torch.optim.SGD(model.parameters(), lr=0.1)

    class Outer(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            with torch.enable_grad():
                closure()
            inner.step()

    outer = Outer(model.parameters(), lr=0.1)
    for (tokens,) in loader():
        outer.step(lambda tokens=tokens: loss_of(model, tokens).backward())
    assert [step for step, *_ in steps(watched, auto)] == [0, 1, 2, 3]
