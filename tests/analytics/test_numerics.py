"""NaN, loss spikes and gradient-norm jumps."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from pulsetrain.analytics import numerics
from pulsetrain.analytics.timings import build
from pulsetrain.analytics.verdict import Healthy, Inconclusive, findings


def logs(loss, grad_norm=None, ranks=2):
    """Steps in which rank 0 logs nothing and the others log; `loss` is a list, or a list for each rank."""
    steps = len(loss)
    rows = {"step": np.repeat(np.arange(steps), ranks), "rank": np.tile(np.arange(ranks), steps)}
    values = [v for x in loss for v in [None] + [x] * (ranks - 1)]
    norms = [v for x in (grad_norm or [None] * steps) for v in [x] * ranks]
    table = pa.table(
        {
            **rows,
            "node": ["n"] * (steps * ranks),
            "start_ns": rows["step"] * 10**9,
            "duration_ns": np.full(steps * ranks, 10**9),
            "tokens": np.ones(steps * ranks, np.int64),
            "flops": np.ones(steps * ranks),
            "loss": pa.array(values, pa.float64()),
            "grad_norm": pa.array(norms, pa.float64()),
        }
    )
    empty = pa.table({"step": pa.array([], pa.int64()), "rank": pa.array([], pa.int64())})
    topology = pa.table({n: pa.array([], pa.int64()) for n in ("rank", "pp")})
    return build(steps=table, parts=empty, topology=topology, job="j")


def falling(steps=60, seed=0):
    noise = np.random.default_rng(seed).standard_normal(steps)
    return (5 * np.exp(-np.arange(steps) / 50) + 0.03 * noise).tolist()


def kinds(verdicts):
    return [f.kind for f in findings(verdicts)]


def test_a_falling_loss_is_healthy():
    for seed in range(100):
        norms = np.exp(0.2 * np.random.default_rng(seed).standard_normal(60)).tolist()
        (verdict,) = numerics.find(logs(falling(seed=seed), norms))
        assert isinstance(verdict, Healthy)
        assert "do not rule out" in verdict.numbers["caveat"]


def test_nobody_logging_is_blind():
    (verdict,) = numerics.find(logs([None] * 30))
    assert isinstance(verdict, Inconclusive)
    assert verdict.blind


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_found_at_its_first_step(bad):
    loss = falling()
    loss[33:] = [bad] * 27
    (finding,) = findings(numerics.find(logs(loss)))
    assert (finding.kind, finding.subject_type, finding.evidence["first_step"]) == ("nan", "job", 33)


def test_a_step_that_nobody_logged_is_no_nan():
    loss = falling()
    loss[33] = None
    assert not findings(numerics.find(logs(loss)))


def test_a_spike_and_a_jump_are_found():
    loss = falling()
    loss[40] *= 2.5
    norms = [1.0 + 0.01 * (i % 7) for i in range(60)]
    norms[45] = 12.0
    found = findings(numerics.find(logs(loss, norms)))
    assert [(f.kind, f.evidence["step"]) for f in found] == [("loss_spike", 40), ("grad_norm_jump", 45)]


def test_one_step_or_none_is_a_verdict():
    assert numerics.find(logs([1.0]))
    assert numerics.find(logs([]))
