"""NaN, loss spikes and gradient-norm jumps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.analytics import numerics
from pulsetrain.analytics.slowness.load_timings import from_tables
from pulsetrain.analytics.verdict import Healthy, Inconclusive, findings


def logs(loss, grad_norm=None, ranks=2, order=None, tokens=None):
    """Steps in which rank 0 logs no loss and the others log; a gradient norm is one of all, or one a rank.

    `tokens`: those of each step, by default 1.
    """
    steps = len(loss)
    rows = {"step": np.repeat(np.arange(steps), ranks), "rank": np.tile(np.arange(ranks), steps)}
    values = [v for x in loss for v in [None] + [x] * (ranks - 1)]
    norms = [v for x in (grad_norm or [None] * steps) for v in (x if isinstance(x, list) else [x] * ranks)]
    table = pa.table(
        {
            **rows,
            "node": ["n"] * (steps * ranks),
            "start_ns": rows["step"] * 10**9,
            "duration_ns": np.full(steps * ranks, 10**9),
            "tokens": np.repeat(tokens or [1] * steps, ranks),
            "flops": np.ones(steps * ranks),
            "loss": pa.array(values, pa.float64()),
            "grad_norm": pa.array(norms, pa.float64()),
        }
    )
    if order is not None:
        table = table.take(pa.array(order))
    empty = pa.table({"step": pa.array([], pa.int64()), "rank": pa.array([], pa.int64())})
    topology = pa.table({n: pa.array([], pa.int64()) for n in ("rank", "pp")})
    return from_tables(steps=table, parts=empty, topology=topology, job="j")


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


def with_overflows(*steps, count=60):
    """Gradient norms of a job in fp16. Its loss scaler skips the steps that overflow."""
    return [float("inf") if step in steps else 1.0 + 0.01 * (step % 7) for step in range(count)]


def test_gradients_that_overflow_now_and_then_are_information():
    (finding,) = findings(numerics.find(logs(falling(), with_overflows(0, 1, 40))))
    assert (finding.kind, finding.severity, finding.subject_type) == ("grad_overflow", "info", "job")
    assert "in 3 of 60 steps" in finding.summary
    (newest,) = findings(numerics.find(logs(falling(), with_overflows(58, 59))))
    assert newest.severity == "info"


@pytest.mark.parametrize(
    ("steps", "severity"),
    [
        ([step for step in range(60) if step % 10], "warning"),
        (range(30, 60, 4), "warning"),
        (range(20), "info"),  # a scaler that begins with too large a scale
        (range(0, 60, 8), "info"),
    ],
)
def test_gradients_that_overflow_in_many_steps_for_long_are_a_warning(steps, severity):
    (finding,) = findings(numerics.find(logs(falling(), with_overflows(*steps))))
    assert (finding.kind, finding.severity) == ("grad_overflow", severity)
    assert ("skips such updates" in finding.summary) == (severity == "warning")


def test_gradients_that_stay_not_finite_and_those_beside_such_a_loss_are_critical():
    (lasting,) = findings(numerics.find(logs(falling(), with_overflows(*range(40, 60)))))
    assert (lasting.severity, lasting.evidence["first_step"]) == ("critical", 40)
    loss = [*falling()[:40], *[float("nan")] * 20]
    both = findings(numerics.find(logs(loss, with_overflows(40))))
    assert [f.severity for f in both] == ["critical", "critical"]


def test_a_loss_that_became_finite_again_is_not_said_to_last():
    loss = falling()
    loss[33] = float("nan")
    (finding,) = findings(numerics.find(logs(loss)))
    assert finding.severity == "critical"
    assert finding.summary == "The loss was not finite in 1 of 60 steps, first at step 33."


def test_a_loss_that_was_never_finite_is_for_the_script_to_mend():
    loss = falling()
    (late,) = findings(numerics.find(logs([*loss[:33], *[float("nan")] * 27])))
    (early,) = findings(numerics.find(logs([float("nan")] * 60)))
    assert "suggested_action" not in late.evidence
    assert "initialization" in early.evidence["suggested_action"]


def test_a_step_that_nobody_logged_is_no_nan():
    loss = falling()
    loss[33] = None
    assert not findings(numerics.find(logs(loss)))


def own_losses(*losses):
    """One loss for each rank and step."""
    timings = logs([None] * len(losses[0]), ranks=len(losses))
    timings.numbers["loss"] = np.array(losses, np.float64).T
    timings.logged["loss"] = np.ones_like(timings.numbers["loss"], np.bool_)
    return timings


def test_a_stage_without_a_loss_may_log_a_nan_in_its_place():
    none, loss = [float("nan")] * 60, falling()
    skipped = ((-5, 0), (-4, 0))
    assert not findings(numerics.find(replace(own_losses(none, none, loss), skipped=skipped)))
    late = [*loss[:20], *none[20:]]
    (finding,) = findings(numerics.find(own_losses(none, none, late)))
    assert finding.evidence["first_step"] == 20
    (alone,) = findings(numerics.find(own_losses(loss, late)))
    assert (alone.subject, alone.evidence["first_step"]) == ("1", 20)


def test_a_spike_and_a_jump_are_found():
    loss = falling()
    loss[40] *= 2.5
    norms = [1.0 + 0.01 * (i % 7) for i in range(60)]
    norms[45] = 12.0
    reported = findings(numerics.find(logs(loss, norms)))
    assert [(f.kind, f.evidence["step"]) for f in reported] == [("loss_spike", 40), ("grad_norm_jump", 45)]


def test_a_sum_over_more_batches_is_no_spike_and_a_spike_among_them_is_one():
    """A script may accumulate more and more batches, and the loss of a step is the sum of theirs."""
    batches = [1] * 20 + [8] * 40
    loss = [mean * count for mean, count in zip(falling(), batches, strict=True)]
    norms = [1.0 * count for count in batches]
    tokens = [8 * count for count in batches]
    assert kinds(numerics.find(logs(loss, norms))) == ["loss_spike", "grad_norm_jump"]
    assert kinds(numerics.find(logs(loss, norms, tokens=tokens))) == []
    loss[40] *= 2.5
    (spike,) = findings(numerics.find(logs(loss, norms, tokens=tokens)))
    assert (spike.kind, spike.evidence["step"]) == ("loss_spike", 40)


def test_a_loss_that_rises_with_as_many_tokens_or_with_unknown_ones_is_a_spike():
    loss = falling()
    loss[40] *= 2.5
    for tokens in ([8] * 60, [0] * 60, [8] * 40 + [0] * 20, [8] * 40 + [4] * 20):
        (spike,) = findings(numerics.find(logs(loss, tokens=tokens)))
        assert (spike.kind, spike.evidence["step"]) == ("loss_spike", 40)


def around_zero(seed, steps=200):
    """A loss like that of a policy: it wanders around zero, now and then by some times as much as usual."""
    draw = np.random.default_rng(seed)
    return (0.02 * draw.standard_t(2.5, steps)).tolist()


def test_a_loss_around_zero_has_a_spike_only_where_it_stands_out_from_all_before():
    said = [f for seed in range(40) for f in findings(numerics.find(logs(around_zero(seed))))]
    assert {f.severity for f in said} <= {"info"}
    assert len(said) <= 8
    loss = around_zero(0)
    loss[150] = 5.0
    (spike,) = findings(numerics.find(logs(loss)))
    assert (spike.kind, spike.severity, spike.evidence["step"]) == ("loss_spike", "info", 150)


def own_norms(ranks=8, steps=60, seed=0):
    """A gradient norm of each rank's own, as before the reduction; stages differ in size."""
    draw = np.random.default_rng(seed)
    sizes = np.repeat([1.0, 3.0], ranks // 2)
    return (sizes * np.exp(0.1 * draw.standard_normal((steps, ranks)))).tolist()


def test_a_jump_of_one_rank_alone_is_that_ranks():
    norms = own_norms()
    norms[40][5] *= 50
    (finding,) = findings(numerics.find(logs(falling(), norms, ranks=8)))
    assert (finding.kind, finding.subject_type, finding.subject) == ("grad_norm_jump", "rank", "5")
    assert finding.evidence["step"] == 40


def test_a_jump_of_all_is_the_jobs_and_clean_norms_are_left_alone():
    norms = own_norms()
    norms[40] = [50 * v for v in norms[40]]
    assert [f.subject_type for f in findings(numerics.find(logs(falling(), norms, ranks=8)))] == ["job"]
    for seed in range(50):
        assert not findings(numerics.find(logs(falling(seed=seed), own_norms(seed=seed), ranks=8)))


@given(st.permutations(range(8)), st.integers(0, 2**32 - 1))
@settings(max_examples=15)
def test_order_of_rows_changes_nothing_and_renaming_ranks_renames_the_answer(names, seed):
    norms = own_norms()
    norms[40][5] *= 50
    renamed = [[row[names.index(r)] for r in range(8)] for row in norms]
    (finding,) = findings(numerics.find(logs([None] * 60, renamed, ranks=8)))
    assert finding.subject == str(names[5])
    order = np.random.default_rng(seed).permutation(60 * 8)
    assert numerics.find(logs([None] * 60, norms, ranks=8, order=order)) == numerics.find(
        logs([None] * 60, norms, ranks=8)
    )


def test_a_worse_jump_is_never_milder():
    def weight(factor):
        norms = own_norms()
        norms[40][5] *= factor
        reported = findings(numerics.find(logs([None] * 60, norms, ranks=8)))
        return max((f.confidence for f in reported), default=0.0)

    weights = [weight(f) for f in (1.0, 2.0, 5.0, 20.0, 1e6)]
    assert weights == sorted(weights)
    assert weights[0] == 0.0 < weights[2]


def test_of_many_ranks_that_jump_those_that_rose_most_are_named():
    norms = own_norms(ranks=48)
    for rank in range(10):
        norms[40][rank] *= 50 + 10 * rank
    found = findings(numerics.find(logs([None] * 60, norms, ranks=48)))
    assert {f.subject for f in found} == {str(rank) for rank in range(2, 10)}
    assert all(f.summary.endswith("Those of 2 other ranks rose less.") for f in found)
    assert {f.evidence["ranks_not_named"] for f in found} == {2}


def test_one_step_or_none_is_a_verdict():
    assert numerics.find(logs([1.0]))
    assert numerics.find(logs([]))
