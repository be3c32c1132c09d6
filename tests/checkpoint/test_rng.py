"""Generators continue from where they were saved."""

import random

import numpy as np
import pytest
import torch

from pulsetrain.checkpoint.rng import NEW_PROCESS_SEED, RNG_KEY, CudaSeeds, RngState, StateWithRng


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


class Cuda:
    """CUDA without a device: what is asked for before its first use is done then, as torch does it."""

    def __init__(self, monkeypatch):
        self.in_use, self.seeds, self._tracker = False, [], torch.cuda._LazySeedTracker()
        monkeypatch.setattr(torch.cuda, "_lazy_seed_tracker", self._tracker)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: self.in_use)
        monkeypatch.setattr(torch.cuda, "manual_seed_all", self.manual_seed_all)

    def manual_seed_all(self, seed):
        if self.in_use:
            self.seeds.append(seed)
        else:
            self._tracker.queue_seed_all(lambda: self.seeds.append(seed), [])

    def begin(self):
        self.in_use = True
        for call in self._tracker.get_calls():
            if call:
                call[0]()


@pytest.fixture
def cuda(monkeypatch):
    return Cuda(monkeypatch)


def test_cuda_begins_again_as_in_a_new_process(cuda):
    seeds = CudaSeeds()
    cuda.begin()
    seeds.seed()
    assert cuda.seeds == [NEW_PROCESS_SEED]


def test_cuda_begins_again_with_the_seed_that_was_asked_for_before(cuda):
    cuda.manual_seed_all(42)
    seeds = CudaSeeds()
    cuda.begin()
    cuda.manual_seed_all(7)
    seeds.seed()
    assert cuda.seeds[-1] == 42


@pytest.mark.parametrize("before", [True, False], ids=["in use before", "never in use"])
def test_generators_that_are_saved_or_were_never_used_are_left_alone(cuda, before):
    cuda.in_use = before
    CudaSeeds().seed()
    assert cuda.seeds == []
