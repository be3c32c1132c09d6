"""A slowdown of the whole job is told until it is over, however far the steps have moved on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pulsetrain.analytics.slowness import fail_slow, mfu
from pulsetrain.analytics.slowness.open_slowdowns import OpenSlowdowns
from pulsetrain.analytics.slowness.timings import from_matrices
from pulsetrain.analytics.verdict import Healthy, Inconclusive, findings
from pulsetrain.records.findings import recorded

ANALYZERS = ("fail_slow", "mfu")
STEPS = np.arange(2600)
LOOKS = range(960, 2600, 40)


def job(everyone, *, tokens=4096.0, slow=None):
    """Looks at a job whose compute is multiplied so: what is said of the steps before a given one."""
    noise = np.random.default_rng(0).standard_normal((len(STEPS), 4))
    compute = 1e8 * everyone[:, None] * (1 + 0.02 * noise)
    if slow is not None:
        compute[slow:, 2] *= 1.5
    counted = np.broadcast_to(np.asarray(tokens), len(STEPS))[:, None] * np.ones(4)
    matrices = {
        "compute": compute,
        "duration_ns": np.tile(compute.max(axis=1, keepdims=True) * 1.1, 4),
        "tokens": counted,
        "flops": counted * 1e6,
    }
    held = OpenSlowdowns()

    def look(last, *, late=0, ranks=2, now_s=0, earlier=None):
        """`late`: so many of the newest rows of the last ranks have not come. `earlier`: by another hub."""
        nonlocal held
        held = held if earlier is None else OpenSlowdowns(earlier)
        rows = slice(max(0, last - 256), last)
        stored = {name: m[rows].copy() for name, m in matrices.items()}
        for matrix in stored.values():
            matrix[len(matrix) - late :, 4 - ranks :] = np.nan
        timings = replace(from_matrices(stored, job="j", steps=STEPS[rows]), now_ns=now_s * 10**9)
        said = fail_slow.find(timings, recovered=False) + mfu.find(timings)
        return held.take(said, timings, ANALYZERS)

    return look


def kinds(said):
    return {(f.kind, f.subject_type) for f in findings(said)}


def test_a_job_that_stays_slow_is_not_healthy_when_only_slow_steps_are_looked_at():
    look = job(np.where((STEPS >= 1000) & (STEPS < 2000), 1.5, 1.0))
    assert not kinds(look(990))
    for last in range(1040, 2001, 40):
        said = look(last)
    assert kinds(said) == {("fail_slow", "job"), ("mfu_decay", "job")}
    assert not any(isinstance(v, Healthy) for v in said)
    slow = next(f for f in findings(said) if f.kind == "fail_slow")
    assert abs(slow.evidence["first_step"] - 1000) <= 4
    assert slow.evidence["last_step"] == 1999
    for last in range(2040, 2600, 40):
        said = look(last)
    assert not kinds(said)


def test_a_job_that_is_a_little_better_is_still_slow():
    look = job(np.where(STEPS < 1000, 1.0, np.where(STEPS < 1500, 1.5, 1.35)))
    for last in range(960, 2600, 40):
        said = look(last)
    assert ("fail_slow", "job") in kinds(said)


@pytest.mark.parametrize("seed", range(3))
def test_a_clean_job_stays_healthy(seed):
    wander = 1 + 0.01 * np.sin(STEPS / (50 + 100 * seed))
    look = job(wander, tokens=np.where(STEPS < 1300, 4096.0, 4000.0))
    assert not any(kinds(look(last)) for last in range(260, 2600, 80))


def test_where_a_rank_was_named_for_it_the_job_is_not_slow_for_ever():
    look = job(np.ones(len(STEPS)), slow=1000)
    assert ("fail_slow", "rank") in kinds(look(1080))
    for last in range(1120, 2600, 40):
        said = look(last)
    assert ("fail_slow", "job") not in kinds(said)


def two_ranks(slow, *, everyone=1.0):
    """Looks at a job of two ranks, of which rank 1 is multiplied so."""
    noise = np.random.default_rng(0).standard_normal((len(STEPS), 2))
    compute = 1e8 * np.stack([np.ones(len(STEPS)), slow], axis=1) * (1 + 0.02 * noise)
    compute *= np.broadcast_to(everyone, len(STEPS))[:, None]
    step = np.tile(compute.max(axis=1, keepdims=True) * 1.1, 2)
    matrices = {"compute": compute, "duration_ns": step}

    def look(last, held):
        rows = slice(max(0, last - 256), last)
        stored = {name: m[rows] for name, m in matrices.items()}
        timings = replace(from_matrices(stored, job="j", steps=STEPS[rows]))
        return held.take(fail_slow.find(timings, recovered=False), timings, ANALYZERS)

    return look


def test_one_of_two_ranks_that_stays_slow_is_named_until_it_is_as_quick_as_before():
    look = two_ranks(np.where((STEPS >= 1000) & (STEPS < 2000), 1.6, 1.0), everyone=1 + STEPS / 9000)
    held = OpenSlowdowns()
    named = {last: [(f.subject_type, f.subject) for f in findings(look(last, held))] for last in LOOKS}
    assert not any(named[last] for last in LOOKS if last <= 1000 or last >= 2040)
    assert all(("rank", "1") in named[last] for last in LOOKS if 1080 <= last <= 2000)


def test_a_slow_rank_outlives_the_hub_that_saw_it():
    look = two_ranks(np.where(STEPS >= 1000, 1.6, 1.0))
    past = [recorded("j", {**f.row(), "ts_ns": f.ts_ns}) for f in findings(look(1100, OpenSlowdowns()))]
    assert [f.subject for f in findings(look(2000, OpenSlowdowns(past)))] == ["1"]
    assert not findings(look(990, OpenSlowdowns(past)))


def test_steps_that_do_more_by_now_say_nothing_of_a_slowdown_before():
    """At step 2000 sequences become twice as long, and what had slowed the job is mended."""
    longer = STEPS >= 2000
    look = job(np.select([longer, STEPS >= 1000], [2.0, 1.5], 1.0), tokens=np.where(longer, 8192.0, 4096.0))
    for last in range(1040, 2000, 40):
        said = look(last)
    assert ("fail_slow", "job") in kinds(said)
    for last in range(2040, 2600, 40):
        said = look(last)
    assert not kinds(said)


def test_an_analyzer_that_was_not_asked_says_nothing():
    look = job(np.where(STEPS >= 1000, 1.5, 1.0))
    said = look(1200)
    assert kinds(said)
    held, timings = OpenSlowdowns(), from_matrices({"compute": np.ones((40, 4))}, job="j")
    held.take(findings(said), timings, ())
    blind = [Inconclusive(analyzer="fail_slow", reason="none")]
    assert held.take(blind, timings, ANALYZERS) == blind


@pytest.mark.parametrize("late", [8, 15, 256])
def test_a_look_before_all_rows_have_come_ends_no_slowdown(late):
    """Rows of two of four ranks are late, by more steps each time. At the end only two ranks report."""
    look = job(np.where(STEPS >= 1000, 1.5, 1.0))
    for last in range(1040, 1600, 40):
        said = look(last)
    assert kinds(said) == {("fail_slow", "job"), ("mfu_decay", "job")}
    assert kinds(look(1640, late=late)) == kinds(said)
    assert kinds(look(1680)) == kinds(said)


def test_steps_that_tell_nothing_keep_a_slowdown_for_half_an_hour():
    look = job(np.where(STEPS >= 1000, 1.5, 1.0))
    for last in range(1040, 1600, 40):
        look(last)
    assert kinds(look(1640, late=256, ranks=4, now_s=1000))
    assert kinds(look(1680, now_s=1100))
    assert kinds(look(1720, late=256, ranks=4, now_s=2800))
    assert not kinds(look(1760, late=256, ranks=4, now_s=3000))


@pytest.mark.parametrize(("tokens", "mended"), [(4096.0, False), (4096.0, True), (None, False)])
def test_a_slowdown_outlives_the_hub_that_saw_it(tokens, mended):
    """What is recorded is what a first look said. The next hub sees slow steps alone, or sound ones."""
    tokens = tokens or np.where(STEPS % 2, 4096.0, 8192.0)
    work = tokens / 4096.0
    look = job(work * np.where((STEPS >= 1000) & ~(mended & (STEPS >= 1600)), 1.5, 1.0), tokens=tokens)
    said = next(found for last in range(1000, 1400, 10) if (found := findings(look(last))))
    while len(said) < 2:
        said = findings(look(1200))
    past = [recorded("j", {**f.row(), "ts_ns": f.ts_ns}) for f in said]
    slow = {("fail_slow", "job"), ("mfu_decay", "job")}
    assert kinds(look(2000, earlier=past)) == (set() if mended else slow)


@pytest.mark.parametrize("kept", [None, {}, {"measure": "step", "per_token": False, "limit": "x", "done": 1}])
def test_a_level_that_cannot_be_read_keeps_nothing(kept):
    look = job(np.ones(len(STEPS)))
    slow = findings(job(np.where(STEPS >= 1000, 1.5, 1.0))(1200))
    damaged = [replace(f, evidence={**f.evidence, "kept": kept}) for f in slow]
    assert not kinds(look(2000, earlier=damaged))
