"""Time lost to data and to the garbage collector: whose it is, and what only looks like it."""

from __future__ import annotations

import numpy as np
import pytest

from pulsetrain.analytics.slowness import stalls
from pulsetrain.analytics.verdict import findings
from tests.analytics.fleet import fleet, timings, with_share


@pytest.mark.parametrize(("stall", "share"), [(stalls.DATA, 0.3), (stalls.GC, 0.1)])
def test_lost_time_of_all_is_the_jobs_and_of_one_is_its_own(stall, share):
    everyone = findings(stalls.find(timings(with_share(fleet(), stall.part, share)), stall))
    assert [(f.kind, f.subject_type) for f in everyone] == [(stall.kind, "job")]
    one = findings(stalls.find(timings(with_share(fleet(), stall.part, share, [3])), stall))
    assert [(f.subject_type, f.subject) for f in one] == [("rank", "3")]


@pytest.mark.parametrize("stall", [stalls.DATA, stalls.GC])
def test_a_step_that_stood_in_a_run_queue_is_no_stall(stall):
    """Where a rank loads data when it loses its processor, the loading takes as long as it is away."""
    columns = fleet(per_node=1)
    hit = (columns["rank"] == 3) & (columns["step"] == 30)
    away = np.where(hit, 20.0 * columns["duration_ns"], 0.0)
    long = {stall.part: 0.001 * columns["duration_ns"] + away, "duration_ns": columns["duration_ns"] + away}
    (finding,) = findings(stalls.find(timings({**columns, **long}), stall))
    assert (finding.subject_type, finding.subject) == ("rank", "3")
    assert not findings(stalls.find(timings({**columns, **long, "cpu_wait": away}), stall))


def test_collections_are_found_on_a_host_whose_ranks_stand_in_run_queues():
    columns = fleet(per_node=1)
    hit = columns["rank"] == 3
    gc = np.where(hit, 0.08 * columns["duration_ns"], 0.0)
    queued = 0.3 * columns["duration_ns"]
    (finding,) = findings(stalls.find(timings({**columns, "gc": gc, "cpu_wait": queued}), stalls.GC))
    assert (finding.kind, finding.subject) == ("gc_pause", "3")
