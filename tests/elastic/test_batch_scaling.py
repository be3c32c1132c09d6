"""A batch that changes with the number of ranks, and its learning rate."""

import doctest

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler as schedules

from pulsetrain.core.errors import UsageError
from pulsetrain.elastic import batch_scaling
from pulsetrain.elastic.batch_scaling import scale_learning_rates, scaled_batch
from pulsetrain.elastic.sampler import ElasticSampler


@given(st.integers(1, 9), st.integers(1, 16), st.integers(1, 16))
def test_each_rank_keeps_its_samples_and_the_rate_follows_the_batch(share, full_world, world):
    full = share * full_world
    linear = scaled_batch(full, full_world=full_world, world=world)
    root = scaled_batch(full, full_world=full_world, world=world, rule="sqrt")
    assert linear.batch == root.batch == share * world
    assert linear.learning_rate_factor == pytest.approx(linear.batch / full)
    assert root.learning_rate_factor**2 == pytest.approx(linear.learning_rate_factor)


def test_a_sampler_goes_on_with_another_batch_and_uses_each_sample_once():
    used, state = [], None
    for world, batches in ((4, 3), (3, 2), (4, 99)):
        batch = scaled_batch(8, full_world=4, world=world).batch
        sampler = ElasticSampler(50, batch=batch, rank=0, world=1)
        if state is not None:
            sampler.load_state_dict(state)
        for number, share in enumerate(sampler):
            if number == batches:
                break
            used += share.microbatches[0]
            sampler.advance(share)
        state = sampler.state_dict()
    assert state["epoch"] == 1
    assert sorted(used) == list(range(50))


SCHEDULES = {
    "lambda": lambda o: schedules.LambdaLR(o, lambda step: 1 / (1 + step)),
    "step": lambda o: schedules.StepLR(o, 2, gamma=0.5),
    "cosine": lambda o: schedules.CosineAnnealingLR(o, 10),
    "one cycle": lambda o: schedules.OneCycleLR(o, [2.0, 4.0], total_steps=20, cycle_momentum=False),
    "cyclic": lambda o: schedules.CyclicLR(o, [1.0, 2.0], [3.0, 4.0], step_size_up=3, cycle_momentum=False),
    "warm-up": lambda o: schedules.SequentialLR(
        o, [schedules.LinearLR(o, 0.1, total_iters=3), schedules.CosineAnnealingLR(o, 9)], [3]
    ),
}


@pytest.mark.filterwarnings("ignore")  # of torch, about the order of calls within its own schedules
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_goes_on_where_it_was_with_the_factor_of_each_attempt(name):
    def start():
        parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
        groups = [{"params": [p], "lr": lr} for p, lr in zip(parameters, (1.0, 2.0), strict=True)]
        optimizer = torch.optim.SGD(groups)
        return optimizer, SCHEDULES[name](optimizer)

    def steps(optimizer, schedule):
        for _ in range(4):
            optimizer.step()
            schedule.step()
            yield [group["lr"] for group in optimizer.param_groups]

    full, saved = start(), None
    for factor in (1.0, 0.75, 0.5, 1.0):
        optimizer, schedule = start()
        if saved is not None:
            optimizer.load_state_dict(saved[0])
            schedule.load_state_dict(saved[1])
        scale_learning_rates(optimizer, factor, schedule)
        expected = [[rate * factor for rate in rates] for rates in steps(*full)]
        found = list(steps(optimizer, schedule))
        assert found == [pytest.approx(rates) for rates in expected]
        saved = optimizer.state_dict(), schedule.state_dict()


def test_a_rate_that_is_a_tensor_stays_the_same_one():
    rate = torch.tensor(2.0)
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=rate)
    live = optimizer.param_groups[0]["lr"]
    scale_learning_rates(optimizer, 0.5)
    assert optimizer.param_groups[0]["lr"] is live
    assert live.item() == 1.0


def test_a_tensor_that_groups_share_is_scaled_once():
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))]} for _ in range(2)]
    optimizer = torch.optim.AdamW(groups, lr=torch.tensor(2.0))
    scale_learning_rates(optimizer, 0.5)
    assert [float(group["lr"]) for group in optimizer.param_groups] == [1.0, 1.0]


def test_what_does_not_fit_is_one_line():
    with pytest.raises(UsageError, match="learning rate factor 0: allowed: above 0"):
        scale_learning_rates(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))]), 0)
    with pytest.raises(UsageError, match="batch 10 of 4 ranks"):
        scaled_batch(10, full_world=4, world=2)
    with pytest.raises(UsageError, match="rule 'cubic': allowed: linear, sqrt"):
        scaled_batch(8, full_world=4, world=2, rule="cubic")


def test_the_example_in_the_docstring_holds():
    assert doctest.testmod(batch_scaling).failed == 0
