"""Generators continue from where they were saved."""

import random

import numpy as np
import torch

from pulsetrain.checkpoint.rng import RNG_KEY, RngState, StateWithRng


def draws() -> tuple:
    return random.random(), random.gauss(), float(np.random.rand()), torch.rand(3).tolist()


def test_every_generator_draws_the_same_again():
    random.gauss()  # leaves a second value behind, which belongs to the state
    saved = RngState().state_dict()
    first = draws()
    assert draws() != first
    RngState().load_state_dict(saved)
    assert draws() == first


def test_what_was_saved_does_not_change_with_the_generators():
    saved = RngState().state_dict()
    before = (saved["torch"].clone(), saved["python"]["words"].copy(), saved["numpy"]["keys"].copy())
    draws()
    assert torch.equal(saved["torch"], before[0])
    assert np.array_equal(saved["python"]["words"], before[1])
    assert np.array_equal(saved["numpy"]["keys"], before[2])


def test_restored_numbers_reach_the_users_state_and_generators_do_not():
    state, rng = {"position": 0}, RngState()
    joined = StateWithRng(state, rng)
    assert joined[RNG_KEY] is rng
    joined["position"] = 8
    assert state == {"position": 8}
