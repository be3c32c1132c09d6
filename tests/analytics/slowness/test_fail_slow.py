"""Fail-slow: a recorded job, the laws of an analyzer, and the cases that others get wrong."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow import csv, parquet

from pulsetrain.analytics.slowness.change_point import changes, rolling_median
from pulsetrain.analytics.slowness.fail_slow import find, for_recording
from pulsetrain.analytics.slowness.load_timings import from_tables
from pulsetrain.analytics.slowness.slow_windows import slow_against_history, slow_against_peers
from pulsetrain.analytics.slowness.step_times_file import read
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, findings
from pulsetrain.core.errors import UsageError
from tests.repository import DATA

RECORDED = DATA / "fail-slow"


def calm(ranks=8, steps=300, noise=0.02, seed=0):
    return 1 + noise * np.random.default_rng(seed).standard_normal((ranks, steps))


def wandering(ranks, steps, noise, seed, rho=0.8):
    """Times that stray and come back, as shared machines' do."""
    rng = np.random.default_rng(seed)
    fresh = rng.standard_normal((ranks, steps))
    level = fresh.copy()
    for t in range(1, steps):
        level[:, t] = rho * level[:, t - 1] + np.sqrt(1 - rho**2) * fresh[:, t]
    return np.exp(noise * level)


def stretches(values):
    return [(s.row, s.begin, s.end) for s in slow_against_peers(values)]


@pytest.mark.skipif(not RECORDED.is_dir(), reason=f"no recordings in {DATA}")
def test_names_the_slow_worker_of_the_recorded_job_in_its_window_and_nobody_else():
    (path,) = RECORDED.glob("*.csv")
    (verdict,) = find(read(path), config=for_recording())
    assert isinstance(verdict, Finding)
    assert (verdict.subject_type, verdict.subject) == ("rank", "6")
    begin, end = verdict.evidence["share_of_run"]
    assert 0.59 <= begin < end <= 0.71
    assert verdict.evidence["slow_ratio"] > 1.2


@pytest.mark.parametrize("seed", range(12))
def test_a_clean_run_gives_nothing(seed):
    values = calm(noise=(0.005, 0.02, 0.05)[seed % 3], seed=seed)
    assert slow_against_peers(values) == slow_against_history(values) == []


def test_ranks_that_wander_by_themselves_raise_few_alarms():
    alarms = [bool(slow_against_peers(wandering(10, 300, 0.03, seed))) for seed in range(60)]
    assert sum(alarms) <= 3


@given(rank=st.integers(0, 7), begin=st.integers(60, 200), length=st.integers(20, 80))
@example(rank=0, begin=78, length=71)  # as long as its history: the windows stop counting before it ends
@settings(max_examples=25, deadline=None)
def test_a_planted_fault_is_that_rank_in_that_window(rank, begin, length):
    values = calm()
    values[rank, begin : begin + length] *= 1.3
    ((row, first, last),) = stretches(values)
    assert row == rank
    assert abs(first - begin) <= 2
    assert abs(last - (begin + length)) <= 2


@given(factors=st.lists(st.floats(1.2, 4), min_size=2, max_size=4, unique=True))
@settings(max_examples=15, deadline=None)
def test_a_worse_fault_is_never_milder(factors):
    def margin(factor):
        values = calm()
        values[3, 150:] *= factor
        return max(s.margin for s in slow_against_peers(values))

    margins = [margin(f) for f in sorted(factors)]
    assert margins == sorted(margins)


def test_one_lucky_fast_window_does_not_flag_the_next_hundred_normal_ones():
    values = calm()
    values[2, 100:110] *= 0.6
    assert slow_against_peers(values) == []
    values = calm()
    values[:, 100:110] *= 0.6
    assert slow_against_history(values) == []


@pytest.mark.parametrize("begin", [0, 60, 100])
@pytest.mark.parametrize("everybody", [False, True])
def test_a_drift_of_one_percent_a_window_is_found_before_it_reaches_fifteen(begin, everybody):
    drift = 1 + 0.001 * np.maximum(0, np.arange(320) - begin)
    values = calm(steps=320, noise=0.01)
    values[slice(None) if everybody else 3] *= drift
    search = slow_against_history if everybody else slow_against_peers
    found = next(t for t in range(60, 320, 5) if search(values[:, :t]))
    assert drift[found - 1] < 1.15


def test_a_uniform_slow_down_is_found_by_the_jobs_own_history_only():
    values = calm()
    values[:, 150:] *= 1.2
    assert slow_against_peers(values) == []
    ((slow),) = slow_against_history(values)
    assert abs(slow.begin - 150) <= 2
    assert slow.ongoing


def test_a_heavier_stage_is_nobodys_fault():
    values = calm()
    values[4:] *= 1.5
    assert slow_against_peers(values) == slow_against_history(values) == []


def test_a_slow_batch_of_data_is_everybodys():
    values = calm()
    values[:, ::7] *= 1.8
    assert slow_against_peers(values) == []


def test_two_ranks_still_have_each_other():
    values = calm(ranks=2)
    values[1, 120:] *= 1.4
    assert {row for row, _, _ in stretches(values)} == {1}


def test_gaps_zeros_and_infinities_are_missing_values():
    values = calm()
    values[5, 100:] *= 1.3
    values[5, 110:120] = np.nan
    values[1, ::9] = np.inf
    values[2, ::11] = 0
    assert {row for row, _, _ in stretches(values)} == {5}


@pytest.mark.parametrize("shape", [(0, 0), (1, 5), (1, 300), (3, 1), (4, 12)])
def test_too_little_is_no_reason_to_accuse(shape):
    values = np.ones(shape)
    assert slow_against_peers(values) == []
    assert slow_against_history(values) == []
    assert slow_against_history(np.full(shape, np.nan)) == []


def test_a_thousand_ranks_are_searched_in_a_moment():
    values = calm(ranks=1024, steps=200)
    values[77, 120:] *= 1.3
    assert {row for row, _, _ in stretches(values)} == {77}


# -- as verdicts -------------------------------------------------------------------------------------------


def records(compute, *, wait=0.1, duration=None, first=0):
    """Timings of ranks that compute as given [rank, step] and wait for the slowest."""
    ranks, steps = compute.shape
    step, rank = np.meshgrid(np.arange(first, first + steps), np.arange(ranks), indexing="ij")
    whole = compute.max(axis=0) + wait if duration is None else duration
    flat = {
        "step": step.ravel(),
        "rank": rank.ravel(),
        "node": [f"n{r // 2}" for r in rank.ravel()],
        "start_ns": step.ravel() * 10**9,
        "duration_ns": np.broadcast_to(whole[:, None], step.shape).ravel() * 1e9,
        "tokens": np.full(step.size, 100),
    }
    parts = {
        "step": step.ravel(),
        "rank": rank.ravel(),
        "compute": compute.T.ravel() * 1e9,
        "wait": (whole[:, None] - compute.T).ravel() * 1e9,
        **{name: np.zeros(step.size) for name in ("data", "checkpoint", "gc", "gc_longest", "other")},
        **{name: np.zeros(step.size) for name in ("forward", "backward", "optimizer")},
    }
    topology = pa.table(
        {"rank": np.arange(ranks), "node": [f"n{r // 2}" for r in range(ranks)], "pp": np.zeros(ranks, int)}
    )
    return from_tables(
        steps=pa.table(flat), parts=pa.table(parts), topology=topology, job="j", attempt=0, now_ns=7
    )


def test_the_rank_that_makes_all_wait_is_named_and_the_job_is_not_blamed_as_well():
    compute = calm(noise=0.005)
    compute[3, 150:] *= 1.5
    (verdict,) = findings(find(records(compute)))
    assert (verdict.subject_type, verdict.subject, verdict.evidence["node"]) == ("rank", "3", "n1")
    assert verdict.severity == "critical"
    assert abs(verdict.evidence["first_step"] - 150) <= 2


def test_a_slow_down_of_all_says_what_grew():
    compute = calm(noise=0.005)
    compute[:, 150:] *= 1.3
    (code,) = findings(find(records(compute)))
    assert (code.subject_type, code.subject) == ("job", "j")
    assert code.evidence["cause"].startswith("compute of all ranks")
    steady = calm(noise=0.005)
    longer = np.where(np.arange(300) < 150, 1.5, 2.0)
    (network,) = findings(find(records(steady, duration=longer)))
    assert network.evidence["cause"] == "communication: the network"


def test_renaming_ranks_renames_the_answer_and_order_changes_nothing():
    compute = calm(noise=0.005)
    compute[3, 150:] *= 1.5
    (straight,) = findings(find(records(compute)))
    (mirrored,) = findings(find(records(compute[::-1])))
    assert (straight.subject, mirrored.subject) == ("3", "4")
    assert straight.evidence["slow_ratio"] == pytest.approx(mirrored.evidence["slow_ratio"])


def test_it_says_when_it_sees_too_little_and_when_all_is_well():
    (blind,) = find(records(calm(steps=9)))
    assert isinstance(blind, Inconclusive)
    (well,) = find(records(calm(noise=0.005)))
    assert isinstance(well, Healthy)


# -- files -------------------------------------------------------------------------------------------------


def file_of(values, path, names=("worker", "time", "batch_time_norm")):
    step, rank = np.meshgrid(np.arange(values.shape[1]), np.arange(values.shape[0]), indexing="ij")
    order = np.random.default_rng(1).permutation(step.size)
    table = pa.table(
        {
            names[0]: rank.ravel()[order],
            names[1]: step.ravel()[order] * 10 + 1,
            names[2]: values.T.ravel()[order],
        }
    )
    (parquet.write_table if path.suffix == ".parquet" else csv.write_csv)(table, path)
    return path


def test_a_recording_judged_once_accuses_nobody_for_noise_and_still_names_who_was_slow():
    config = for_recording()
    noisy = [calm(10, 300, noise=0.1, seed=s) for s in range(12)]
    assert sum(bool(slow_against_peers(values, config)) for values in noisy) <= 1
    for values in noisy:
        values[6, 200:240] *= 1.35
    named = [{s.row for s in slow_against_peers(values, config)} for values in noisy]
    assert named.count({6}) >= 11


def test_rows_without_a_rank_or_step_are_left_out(tmp_path):
    values = calm(4, 60)
    lines = [f"{r},{s},{values[r, s]}" for r in range(4) for s in range(60)]
    whole, torn = tmp_path / "whole.csv", tmp_path / "torn.csv"
    whole.write_text("\n".join(["worker,step,duration_s", *lines]))
    torn.write_text("\n".join(["worker,step,duration_s", ",5,9.0", "1,,9.0", *lines, "2,1e300,9.0"]))
    assert find(read(torn)) == find(read(whole))
    torn.write_text("worker,step,duration_s\n,5,9.0\n")
    (verdict,) = find(read(torn))
    assert isinstance(verdict, Inconclusive)


def test_csv_and_parquet_say_the_same(tmp_path):
    values = calm()
    values[6, 180:195] *= 1.5
    (a,) = find(read(file_of(values, tmp_path / "a.csv")))
    (b,) = find(read(file_of(values, tmp_path / "b.parquet", ("rank", "step", "duration_ns"))))
    assert (a.subject, a.evidence) == (b.subject, b.evidence)
    assert (a.evidence["first_step"], a.evidence["last_step"]) == (1801, 1941)


def test_workers_with_clocks_of_their_own_go_by_position(tmp_path):
    values = calm()
    values[2, 200:] *= 1.4
    rows = [f"{w},{t * 100 + w * 7},{values[w, t]}" for w in range(8) for t in range(300)]
    (tmp_path / "a.csv").write_text("\n".join(["rank,time,duration", *rows]))
    (verdict,) = find(read(tmp_path / "a.csv"))
    assert verdict.subject == "2"


def test_what_is_no_such_file_is_one_clear_line(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        read(tmp_path / "none.csv")
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match="no column rank or worker"):
        read(tmp_path / "x.csv")
    (tmp_path / "y.csv").write_text("rank,step,duration\n1,2,slow\n")
    with pytest.raises(UsageError, match="not numeric"):
        read(tmp_path / "y.csv")
    (tmp_path / "z.parquet").write_text("nope")
    with pytest.raises(UsageError, match="neither CSV nor Parquet"):
        read(tmp_path / "z.parquet")


def test_a_change_is_found_where_it_is():
    values = np.concatenate([np.tile([1.0, 1.1], 30), np.tile([2.0, 2.1], 30)])
    assert changes(values) == [60]
    assert changes(np.full(50, 3.0)) == []
    assert changes(np.full(50, np.nan)) == []


def test_rolling_medians_skip_gaps():
    values = np.array([[1.0, np.nan, 3.0, np.nan, np.nan, np.nan, 9.0]])
    assert rolling_median(values, 3).tolist()[0][0] == 2.0
    assert np.isnan(rolling_median(values, 3)[0, 2])
