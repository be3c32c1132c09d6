"""The cases in which other tools fail, each with what they do wrong."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from pulsetrain.analytics.slowness import fail_slow, imbalance, links, mfu, stalls, straggler
from pulsetrain.analytics.slowness.timings import COMPUTED
from pulsetrain.analytics.slowness.transfers import transfers_from
from pulsetrain.analytics.verdict import findings
from tests.analytics.fleet import fleet, timings
from tests.analytics.slowness.test_links import GROUPS, transfers

ANALYZERS = {
    "straggler": straggler.find,
    "fail_slow": partial(fail_slow.find, recovered=False),
    "stages": imbalance.stages,
    "sequences": imbalance.sequences,
    "data": partial(stalls.find, stall=stalls.DATA),
    "gc": partial(stalls.find, stall=stalls.GC),
    "mfu": mfu.find,
}


def reported(t):
    return [f for analyzer in ANALYZERS.values() for f in findings(analyzer(t))]


def accused(t):
    return {(f.subject_type, f.subject) for f in reported(t) if f.subject_type in ("rank", "node", "stage")}


def test_one_lucky_fast_window_does_not_flag_the_next_hundred():
    """A best-ever minimum as the baseline makes every later window look slow."""
    columns = fleet(steps=600, noise=0.02)
    lucky = (columns["step"] >= 60) & (columns["step"] < 70)
    for name in ("compute", "forward", "backward", "optimizer", "wait", "duration_ns"):
        columns[name] = columns[name] * np.where(lucky, 0.7, 1.0)
    whole = timings(columns)
    for end in range(100, 600, 50):
        keep = columns["step"] <= end
        assert not reported(timings({n: v[keep] for n, v in columns.items()}))
    assert not reported(whole)


def test_a_pipeline_imbalance_of_half_flags_the_stage_and_not_half_of_the_ranks():
    """A comparison of each rank with the best of all calls every rank of a heavier stage a straggler."""
    assert accused(timings(fleet(ranks=16, stages=2, steps=80, stage_ratio={1: 1.5}))) == {("stage", "1")}


@pytest.mark.parametrize("seed", range(5))
def test_one_node_a_fifth_slower_among_64_is_found(seed):
    """A threshold on a score of 0.75 against the best rank never sees a node that is 1.2 times slow."""
    slow = dict.fromkeys(range(40, 48), 1.2)
    columns = fleet(ranks=512, per_node=8, stages=4, steps=60, slow=slow, slow_from=30, seed=seed)
    named = accused(timings(columns))
    assert ("node", "n5") in named
    assert named <= {("node", "n5"), *(("rank", str(r)) for r in slow)}


@pytest.mark.parametrize("seed", range(5))
def test_two_slow_ranks_among_eight_are_found(seed):
    """Two of eight move a mean and a standard deviation so far that neither stands out."""
    columns = fleet(ranks=8, per_node=1, stages=1, steps=60, slow={2: 1.3, 5: 1.3}, slow_from=30, seed=seed)
    assert accused(timings(columns)) == {("rank", "2"), ("rank", "5")}


def test_a_slow_port_is_not_hidden_behind_the_matrix_product_that_it_overlaps():
    """Nobody waits longer and no step grows, as long as the transfer ends before what hides it."""
    quiet = timings(fleet(ranks=16, per_node=2, steps=40))
    assert not reported(quiet)
    table = transfers_from(transfers(slow=["dp:3"], ratio=1.8))
    (finding,) = findings(links.find(quiet, table, GROUPS, straggler.find(quiet)))
    assert (finding.kind, finding.subject_type, finding.subject) == ("slow_link", "group", "dp:3")


@pytest.mark.parametrize("queued", [0.0, 0.08])
def test_a_job_that_slows_while_its_ranks_queue_for_processors_is_information(queued):
    """What else runs on the host slows the job as much as the job itself can."""
    everyone = np.where(np.arange(200) < 110, 1.0, 1.4)
    columns = fleet(steps=200, everyone=everyone)
    columns["cpu_wait"] = queued * columns["duration_ns"]
    t = timings(columns)
    found = findings(fail_slow.find(t)) + findings(mfu.find(t))
    assert {f.kind for f in found} == {"fail_slow", "mfu_decay"}
    assert all((f.severity == "info") == (queued > 0) for f in found)


def test_steps_that_scatter_are_not_put_to_too_few_processors_where_nobody_queues():
    everyone = np.where(np.arange(200) < 110, 1.0, 1.6)
    found = findings(fail_slow.find(timings(fleet(steps=200, noise=0.15, everyone=everyone))))
    (job,) = [f for f in found if f.subject_type == "job"]
    assert not job.evidence["oversubscribed"]
    assert "processors" not in job.summary
    assert "steps scatter" in job.summary


def test_waits_for_processors_are_held_against_what_is_no_communication():
    """Nothing is counted in communication, so a job that mostly communicates seems to wait for little."""
    everyone = np.where(np.arange(200) < 110, 1.0, 1.4)
    columns = fleet(steps=200, noise=0.01)
    own = columns["duration_ns"] - columns["wait"]
    columns["cpu_wait"] = 0.045 * own
    columns["wait"] = columns["wait"] + (4 * everyone[columns["step"]] - 1) * columns["duration_ns"]
    columns["duration_ns"] = own + columns["wait"]
    assert (columns["cpu_wait"] < 0.03 * columns["duration_ns"]).all()
    found = findings(fail_slow.find(timings(columns))) + findings(mfu.find(timings(columns)))
    assert {f.kind for f in found} == {"fail_slow", "mfu_decay"}
    assert {f.severity for f in found} == {"info"}


def test_on_a_crowded_host_a_slower_job_is_seen_by_what_its_ranks_compute_net_of_waits():
    """Within a third of the steps that its step time would take: what waits for a processor is taken out."""
    rng = np.random.default_rng(0)
    everyone = np.where(np.arange(100) < 60, 1.0, 1.3)
    columns = fleet(steps=100, everyone=everyone, noise=0.01)
    lost = columns["compute"] * rng.exponential(0.3, len(columns["step"]))
    stretched = {p: columns[p] * (1 + lost / columns["compute"]) for p in COMPUTED}
    t = timings({**columns, **stretched, "cpu_wait": lost, "duration_ns": columns["duration_ns"] + lost})
    (finding,) = [f for f in findings(fail_slow.find(t)) if f.subject_type == "job"]
    assert (finding.evidence["measure"], finding.severity) == ("compute", "info")
    assert abs(finding.evidence["first_step"] - 60) <= 3
