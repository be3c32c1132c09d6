"""Slow links: a group that transfers slower than its siblings is told from a rank that comes late."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from pulsetrain.analytics.slowness.links import find
from pulsetrain.analytics.slowness.straggler import find as stragglers
from pulsetrain.analytics.slowness.transfers import transfers_from
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, findings
from tests.analytics.fleet import fleet, timings

GROUPS = {f"dp:{i}": (i, i + 8) for i in range(8)} | {f"tp:{20 + i}": (2 * i, 2 * i + 1) for i in range(8)}


def transfers(*, slow=(), ratio=1.0, noise=0.03, steps=40, seed=0, groups=GROUPS):
    rng = np.random.default_rng(seed)
    names = list(groups)
    grid = [(s, g) for s in range(steps) for g in names]
    time = 1e6 * np.exp(noise * rng.standard_normal(len(grid)))
    time *= np.array([ratio if g in slow else 1.0 for _, g in grid])
    return pa.table(
        {
            "step": [s for s, _ in grid],
            "group": [g for _, g in grid],
            "phase": ["all_reduce"] * len(grid),
            "transfer_ns": time.astype(np.int64),
            "bytes": [1_000_000 if g.startswith("dp") else 4000 for _, g in grid],
            "members": [2] * len(grid),
        }
    )


JOB = timings(fleet(ranks=16, per_node=2, steps=40))


def subjects(verdicts):
    return [(f.subject_type, f.subject) for f in findings(verdicts)]


def test_a_slow_group_is_named():
    found = find(JOB, transfers_from(transfers(slow=["dp:3"], ratio=1.6)), GROUPS, [])
    assert subjects(found) == [("group", "dp:3")]


def test_groups_that_meet_on_one_node_are_the_nodes():
    found = find(JOB, transfers_from(transfers(slow=["dp:2", "dp:3", "tp:21"], ratio=2.0)), GROUPS, [])
    assert subjects(found) == [("node", "n1")]


def test_groups_across_nodes_are_no_siblings_of_those_inside_one():
    """Four ranks a node and groups of two: every second one straddles."""
    job = timings(fleet(ranks=16, per_node=4, steps=40))
    inside = {f"cp:{i}": (4 * i, 4 * i + 1) for i in range(4)}
    across = {f"cp:{4 + i}": (4 * i + 3, (4 * i + 4) % 16) for i in range(4)}
    groups = inside | across
    table = transfers(groups=groups, slow=[*across], ratio=5.0)
    assert not findings(find(job, transfers_from(table), groups, []))
    row = [5.0 if g == "cp:6" else 1.0 for g in table["group"].to_pylist()]
    slower = pa.array((np.array(table["transfer_ns"]) * row).astype(np.int64))
    table = table.set_column(table.schema.get_field_index("transfer_ns"), "transfer_ns", slower)
    assert subjects(find(job, transfers_from(table), groups, [])) == [("group", "cp:6")]


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.4])
def test_clean_groups_are_left_alone(noise):
    for seed in range(50):
        assert not findings(find(JOB, transfers_from(transfers(noise=noise, seed=seed)), GROUPS, []))


def test_a_straggler_in_the_group_is_no_link():
    late = timings(fleet(ranks=16, per_node=2, steps=40, slow={3: 1.5}))
    found = find(late, transfers_from(transfers(slow=["dp:3"], ratio=1.6)), GROUPS, stragglers(late))
    assert isinstance(found[0], Healthy)


def test_a_straggler_slow_by_next_to_nothing_hides_no_slow_link():
    late = timings(fleet(ranks=16, per_node=2, steps=40, slow={3: 1.04}))
    assert ("rank", "3") in subjects(stragglers(late))
    found = find(late, transfers_from(transfers(slow=["dp:3"], ratio=8.0)), GROUPS, stragglers(late))
    assert subjects(found) == [("group", "dp:3")]


def test_a_member_that_computes_longer_excuses_the_link_before_it_is_sure_to_be_slow():
    late = timings(fleet(ranks=16, per_node=2, steps=40, slow={3: 1.4}, slow_from=18))
    assert isinstance(find(late, transfers_from(transfers(slow=["dp:3"], ratio=1.6)), GROUPS, [])[0], Healthy)
    found = find(late, transfers_from(transfers(slow=["dp:3"], ratio=4.0)), GROUPS, [])
    assert subjects(found) == [("group", "dp:3")]
    assert findings(found)[0].evidence["ranks"] == [3, 11]


def test_where_times_scatter_a_link_is_seen_by_its_quick_transfers():
    """Its best are worse than the others' bad ones; a link that is merely unlucky has good ones too."""
    found = find(JOB, transfers_from(transfers(slow=["dp:3"], ratio=8.0, noise=0.8)), GROUPS, [])
    assert subjects(found) == [("group", "dp:3")]
    for seed in range(30):
        assert not findings(find(JOB, transfers_from(transfers(noise=0.8, seed=seed)), GROUPS, []))
        unlucky = transfers_from(transfers(slow=["dp:3"], ratio=1.8, noise=0.8, seed=seed))
        assert not findings(find(JOB, unlucky, GROUPS, []))


def test_groups_with_other_payloads_are_no_siblings():
    """A stage with few parameters sends little: more a byte, and nobody is slow."""
    table = transfers().to_pydict()
    light = [g in ("dp:0", "dp:1", "dp:2", "dp:3") for g in table["group"]]
    table["bytes"] = [b // 4 if few else b for b, few in zip(table["bytes"], light, strict=True)]
    table["transfer_ns"] = [t // 2 if few else t for t, few in zip(table["transfer_ns"], light, strict=True)]
    assert not findings(find(JOB, transfers_from(pa.table(table)), GROUPS, []))
    table["transfer_ns"] = [
        2 * t if g == "dp:1" else t for t, g in zip(table["transfer_ns"], table["group"], strict=True)
    ]
    assert subjects(find(JOB, transfers_from(pa.table(table)), GROUPS, [])) == [("group", "dp:1")]


@pytest.mark.parametrize(
    "table",
    [
        transfers(steps=0),
        transfers(steps=3),
        transfers(groups={"world": tuple(range(16))}),
        transfers().slice(0, 5),
        pa.concat_tables([transfers(), transfers()]),
    ],
)
def test_degenerate_data_gets_a_verdict(table):
    verdicts = find(JOB, transfers_from(table), {}, [])
    assert verdicts
    assert all(isinstance(v, Finding | Healthy | Inconclusive) for v in verdicts)
    assert not findings(verdicts)


@pytest.mark.parametrize("known", [True, False])
def test_a_slow_group_whose_members_may_be_slow_themselves_is_information(known):
    job = timings(fleet(ranks=16, per_node=2, steps=40))
    if not known:
        job.parts["compute"][:] = np.nan
    (finding,) = findings(find(job, transfers_from(transfers(slow=["dp:3"], ratio=1.6)), GROUPS, []))
    assert finding.severity == ("warning" if known else "info")
    assert ("slow member cannot be excluded" in finding.summary) == (not known)


def test_a_slow_group_whose_members_are_not_known_is_information():
    (finding,) = findings(find(JOB, transfers_from(transfers(slow=["dp:3"], ratio=1.6)), {}, []))
    assert finding.severity == "info"
    assert "who the members are is not known" in finding.summary
