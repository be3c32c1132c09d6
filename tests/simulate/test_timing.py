"""The times of a simulated step obey the pipeline, and faults show where they were planted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.simulate.spec import FleetSpec, parse_fault
from pulsetrain.simulate.timing import reduce_seconds, simulate_step


def spec_of(*faults, **changes):
    shape = {"ranks": 16, "tp": 2, "pp": 2, "microbatches": 3, "noise": 0.01} | changes
    return FleetSpec(**shape, faults=tuple(map(parse_fault, faults)))


@given(
    tp=st.sampled_from([1, 2]),
    pp=st.integers(1, 3),
    dp=st.integers(1, 3),
    microbatches=st.integers(1, 4),
    seed=st.integers(0, 9),
)
def test_a_stage_begins_no_pass_before_its_neighbour_has_sent_it(tp, pp, dp, microbatches, seed):
    spec = spec_of(ranks=tp * pp * dp, tp=tp, pp=pp, microbatches=microbatches, seed=seed)
    times = simulate_step(spec, 0)
    forward_end = times.forward_start + times.forward
    backward_end = times.backward_start + times.backward
    assert (times.forward_start[1:] >= forward_end[:-1] + spec.p2p_s - 1e-12).all()
    assert (times.backward_start[:-1] >= backward_end[1:] + spec.p2p_s - 1e-12).all()
    assert (times.backward_start >= forward_end[..., -1:] - 1e-12).all()
    assert (times.forward_wait >= 0).all()
    assert (times.backward_wait >= 0).all()


def test_ranks_of_a_tensor_group_pass_together_and_replicas_meet_in_the_reduction():
    times = simulate_step(spec_of("straggler:rank=5,factor=2"), 0)
    assert np.ptp(times.forward, axis=2).max() == 0
    assert np.ptp(times.reduce_start + times.reduce, axis=1).max() < 1e-9
    assert (times.reduce_start + times.reduce + times.optimizer).max() == pytest.approx(times.length)


def test_a_step_depends_on_its_number_and_seed_alone():
    spec = spec_of()
    later = simulate_step(spec, 7)
    simulate_step(spec, 3)
    again = simulate_step(spec, 7)
    assert (later.forward_own == again.forward_own).all()
    assert (simulate_step(spec, 8).forward_own != again.forward_own).any()


def test_a_straggler_is_slow_from_its_first_step_on():
    spec = spec_of("straggler:rank=5,factor=2,since=10", noise=0.0)
    before, during = (simulate_step(spec, step).forward_own.reshape(16, -1).mean(axis=1) for step in (9, 10))
    assert during / before == pytest.approx([2.0 if rank == 5 else 1.0 for rank in range(16)])


def test_a_drift_grows_with_every_step():
    spec = spec_of("drift:rank=0,per_step=0.1,since=2", noise=0.0)
    first = [simulate_step(spec, step).forward_own[0, 0, 0, 0] for step in (2, 3, 12)]
    assert np.array(first) / spec.forward_s == pytest.approx([1.0, 1.1, 2.0])


def test_stalls_delay_the_ranks_of_a_node():
    times = simulate_step(spec_of("data_stall:seconds=3,node=sim-00001", ranks_per_node=8), 0)
    assert (times.data.reshape(-1) > 3).tolist() == [False] * 8 + [True] * 8
    gc = spec_of("gc:rank=2,seconds=1,every=4")
    assert [simulate_step(gc, step).gc.sum() for step in range(5)] == [1, 0, 0, 0, 1]


def test_a_slow_link_slows_its_group_alone_and_one_replica_reduces_nothing():
    seconds = reduce_seconds(spec_of("slow_link:rank=0,factor=5"), 0)
    assert seconds.shape == (2, 1, 2)
    assert sorted(seconds.reshape(-1) / spec_of().dp_s) == [1, 1, 1, 5]
    assert reduce_seconds(spec_of(ranks=4), 0).sum() == 0


def test_a_checkpoint_lengthens_the_steps_that_save():
    spec = spec_of(checkpoint_every=3, noise=0.0)
    lengths = [simulate_step(spec, step).length for step in range(6)]
    assert [length > lengths[0] for length in lengths] == [False, False, True, False, False, True]
