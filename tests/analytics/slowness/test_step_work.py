"""Since when steps are as much work as the newest ones."""

from __future__ import annotations

import numpy as np
import pytest

from pulsetrain.analytics.slowness.step_work import since_change
from pulsetrain.analytics.slowness.timings import from_matrices

ROWS = np.arange(200)


def since(counts, name="tokens"):
    job = from_matrices({"compute": np.ones_like(counts), name: counts})
    return int(since_change(job, ROWS)[0])


@pytest.mark.parametrize("name", ["tokens", "flops"])
def test_steps_before_a_change_of_the_batch_are_other_work(name):
    counts = np.full((200, 4), 4096.0)
    counts[120:] *= 1.2
    assert abs(since(counts, name) - 120) <= 1


def test_sequences_that_grow_step_by_step_leave_the_newest_steps():
    counts = np.exp(np.linspace(0, 1, 200))[:, None].repeat(4, axis=1)
    assert 180 <= since(counts) <= 195


def test_lengths_that_vary_from_step_to_step_are_no_change():
    for seed in range(20):
        assert since(4096 * np.random.default_rng(seed).lognormal(0, 0.3, (200, 4))) == 0


def test_two_lengths_that_take_turns_are_no_change():
    for seed in range(20):
        long = np.random.default_rng(seed).random(200) < 0.3
        counts = np.where(long, 8192.0, 4096.0)[:, None].repeat(4, axis=1)
        assert since(counts) == 0


def test_fewer_tokens_of_one_rank_and_counts_that_are_missing_are_no_change():
    counts = np.full((200, 4), 4096.0)
    counts[100:, 1] /= 2
    counts[::3] = 0
    counts[5, 2] = np.nan
    assert since(counts) == 0
    assert since(np.zeros((200, 4))) == 0
    assert since(np.full((200, 4), np.nan)) == 0
