"""Uneven work of pipeline stages and of sequences, told from slow ranks and from oversubscribed hosts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.analytics.slowness.imbalance import sequences, stages
from pulsetrain.analytics.slowness.timings import COMPUTED, from_matrices
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, findings
from tests.analytics.fleet import fleet, parts_of, timings


def test_a_heavier_stage_is_named_and_no_rank():
    (finding,) = findings(stages(timings(fleet(stage_ratio={1: 1.5}))))
    assert (finding.kind, finding.subject_type, finding.subject) == ("stage_imbalance", "stage", "1")
    assert finding.severity == "warning"


def test_a_slow_node_in_a_stage_is_no_imbalance_of_stages():
    assert not findings(stages(timings(fleet(slow={4: 1.5, 5: 1.5}))))


@pytest.mark.parametrize(("since", "named"), [(0, ["1"]), (40, []), (70, [])])
def test_a_stage_that_came_to_be_longer_is_no_imbalance_by_design(since, named):
    columns = fleet(steps=100, noise=0.02)
    longer = np.where((columns["pp"] == 1) & (columns["step"] >= since), 1.5, 1.0)
    columns = {**columns, **{p: columns[p] * longer for p in COMPUTED}}
    assert [f.subject for f in findings(stages(timings(columns)))] == named


def waiting(columns, shares):
    """The same where stages wait for processors for these shares of what they compute, and it is counted."""
    lost = np.array(shares)[columns["pp"]] * columns["compute"]
    stretched = {p: columns[p] * (1 + lost / columns["compute"]) for p in COMPUTED}
    return {**columns, **stretched, "cpu_wait": lost}


def test_a_stage_that_waits_more_for_processors_makes_the_other_no_longer():
    """What is counted as waiting may be more than what lengthened the computing."""
    columns = waiting(fleet(noise=0.02), (0.5, 0.5))
    columns["cpu_wait"] = columns["cpu_wait"] * np.where(columns["pp"] == 1, 1.9, 1.0)
    assert not findings(stages(timings(columns)))


def test_a_heavier_stage_is_named_on_a_crowded_host_too():
    (finding,) = findings(stages(timings(waiting(fleet(stage_ratio={1: 1.5}), (0.3, 0.3)))))
    assert finding.subject == "1"


WAYS = {"stages": {}, "forward and backward": {"stages": 1}}


each = pytest.mark.parametrize("shape", WAYS.values(), ids=WAYS.keys())


def uneven(spread=0.3, *, seed=0, first=0, noise=0.02, **shape):
    """A fleet whose replicas draw their amount of work anew in each step from `first` on."""
    columns = fleet(steps=60, noise=noise, seed=seed, **shape)
    drawn = np.exp(spread * np.random.default_rng(seed).standard_normal((60, columns["dp"].max() + 1)))
    work = np.where(columns["step"] >= first, drawn[columns["step"], columns["dp"]], 1.0)
    return {**columns, **{p: columns[p] * work for p in COMPUTED}}


def crowded(columns, seed=0):
    """The same on a host with less processors than ranks: waits in forward and in backward, each its own."""
    rng = np.random.default_rng(seed)
    waits = {
        p: 0.25 * columns[p] * rng.exponential(size=len(columns["step"])) for p in ("forward", "backward")
    }
    lost = waits["forward"] + waits["backward"]
    waited = {p: columns[p] + waits[p] for p in waits}
    return {**columns, **waited, "compute": columns["compute"] + lost, "cpu_wait": lost}


def reported(columns, **more):
    return findings(sequences(timings(columns, **more)))


@each
@pytest.mark.parametrize("host", [lambda columns, seed: columns, crowded], ids=["quiet", "crowded"])
def test_unequal_sequences_are_reported(shape, host):
    for seed in range(10):
        (finding,) = reported(host(uneven(seed=seed, **shape), seed))
        assert (finding.kind, finding.subject_type, finding.subject) == ("sequence_imbalance", "job", "j")


@each
@pytest.mark.parametrize("host", [lambda columns, seed: columns, crowded], ids=["quiet", "crowded"])
def test_clean_runs_give_no_finding(shape, host):
    for seed in range(20):
        for noise in (0.01, 0.1):
            assert not reported(host(fleet(seed=seed, noise=noise, steps=60, **shape), seed))


def test_ranks_that_share_processors_are_not_blamed_on_sequences():
    """Whoever gets less of a processor is slow in both passes."""
    columns = fleet(steps=60, noise=0.01, stages=1, ranks=4)
    share = np.exp(0.12 * np.random.default_rng(2).standard_normal(len(columns["rank"])))
    busy = {p: columns[p] * share for p in COMPUTED} | {"cpu_wait": 0.25 * columns["compute"]}
    crowd, quiet = ({**columns, **busy, **more} for more in ({}, {"cpu_wait": columns["cpu_wait"] * 0}))
    assert reported(quiet)
    (verdict,) = sequences(timings(crowd))
    assert isinstance(verdict, Inconclusive)
    assert "processors" in verdict.reason


def test_ranks_that_hardly_get_to_run_are_not_blamed_on_sequences_whatever_the_spread():
    columns = fleet(steps=60, noise=0.01, stages=1, ranks=4)
    share = np.exp(0.5 * np.random.default_rng(2).standard_normal(len(columns["rank"])))
    busy = {p: columns[p] * share for p in COMPUTED}
    said = sequences(timings({**columns, **busy, "cpu_wait": 0.5 * busy["compute"]}))
    assert [type(verdict) for verdict in said] == [Inconclusive]
    assert reported({**columns, **busy, "cpu_wait": columns["cpu_wait"] * 0})


def test_what_has_just_begun_is_seen_in_the_newest_steps():
    assert reported(uneven(first=25, noise=0.005))
    assert not reported(uneven(first=58, noise=0.005))


@each
def test_a_slow_rank_is_no_imbalance_of_sequences(shape):
    assert not reported(fleet(slow={2: 1.5}, **shape))
    assert not reported(fleet(slow={2: 1.5}, slow_from=30, **shape))


def test_a_replica_that_is_slow_for_a_while_is_no_imbalance_of_sequences():
    everywhere = {r: 1.6 for r in (0, 4)}  # both stages of one replica
    for begun in (20, 30, 40):
        assert not reported(fleet(slow=everywhere, slow_from=begun, noise=0.005))


def test_ranks_that_wander_by_themselves_share_no_sequences():
    columns = fleet(noise=0.005)
    alone = np.exp(0.3 * np.random.default_rng(0).standard_normal(len(columns["rank"])))
    assert not reported({**columns, **{p: columns[p] * alone for p in COMPUTED}})


@each
def test_a_worse_imbalance_is_never_milder(shape):
    order = {"info": 1, "warning": 2}
    weights = [
        max(((order[f.severity], f.confidence) for f in reported(uneven(x, **shape))), default=(0, 0.0))
        for x in (0.0, 0.05, 0.1, 0.2, 0.4, 0.8)
    ]
    assert weights == sorted(weights)
    assert weights[-1][0] == 2


@each
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=5)
def test_order_of_rows_and_names_of_ranks_change_nothing(shape, seed):
    columns = uneven(**shape)
    plain = sequences(timings(columns))
    rng = np.random.default_rng(seed)
    assert sequences(timings(columns, order=rng.permutation(len(columns["rank"])))) == plain
    names = rng.permutation(100)[:8]
    (renamed,) = reported({**columns, "rank": names[columns["rank"]]})
    (finding,) = findings(plain)
    assert renamed.confidence == pytest.approx(finding.confidence, abs=1e-3)


@each
def test_a_step_that_is_not_whole_yet_and_a_rank_without_spans_blind_nobody(shape):
    columns = uneven(**shape)
    late = (columns["step"] == 59) & (columns["rank"] == 3)
    assert reported({n: v[~late] for n, v in columns.items()})
    missing = {p: np.where(columns["rank"] == 7, np.nan, columns[p]) for p in COMPUTED}
    assert reported({**columns, **missing})


@each
def test_degenerate_data_gets_a_verdict(shape):
    columns = uneven(**shape)
    count, cases = len(columns["rank"]), parts_of(columns)
    cases += [
        {**columns, **dict.fromkeys(COMPUTED, np.full(count, np.nan))},
        {**columns, **dict.fromkeys(COMPUTED, np.zeros(count))},
        {**columns, "dp": np.full(count, -1), "pp": np.full(count, -1)},
        {n: np.concatenate([v, v]) for n, v in columns.items()},
    ]
    for case in cases:
        verdicts = sequences(timings(case))
        assert verdicts
        assert all(isinstance(v, Finding | Healthy | Inconclusive) for v in verdicts)


def test_a_lost_row_hides_no_stage_with_more_work():
    compute = np.tile([100.0, 160.0], (60, 1))
    compute[17, 0] = compute[-1, 1] = np.nan
    (finding,) = stages(from_matrices({"compute": compute}, stages=np.array([0, 1])))
    assert finding.subject == "1"
    compute[:30, 0] = np.nan
    (verdict,) = stages(from_matrices({"compute": compute[:40]}, stages=np.array([0, 1])))
    assert verdict.blind
