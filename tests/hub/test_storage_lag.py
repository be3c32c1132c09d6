"""Records that stop arriving are no data; a job that stands still is not their fault."""

from __future__ import annotations

from pulsetrain.analytics.verdict import Healthy
from pulsetrain.hub.storage_lag import LIMIT_S, StorageLag
from pulsetrain.records.findings import Finding


def look(switch, stored, live, now_s):
    return switch.look("gpt", 1, stored_step=stored, live_step=live, now_s=now_s, now_ns=int(now_s * 1e9))


def test_steps_that_are_not_stored_for_long_are_no_data():
    switch = StorageLag()
    assert isinstance(look(switch, 10, 10, 0.0), Healthy)
    assert isinstance(look(switch, 10, 40, LIMIT_S - 0.1), Healthy)
    finding = look(switch, 10, 60, LIMIT_S)
    assert isinstance(finding, Finding)
    assert (finding.kind, finding.severity, finding.subject) == ("no_data", "critical", "gpt")
    assert isinstance(look(switch, 60, 61, LIMIT_S + 1), Healthy)


def test_nothing_stored_from_the_first_step_on_is_no_data_too():
    switch = StorageLag()
    look(switch, -1, 3, 0.0)
    assert isinstance(look(switch, -1, 90, LIMIT_S), Finding)


def test_a_job_that_stands_still_accuses_nobody():
    switch = StorageLag()
    for second in range(0, 600, 10):
        assert isinstance(look(switch, 10, 10, float(second)), Healthy)


def test_a_path_that_lags_but_moves_is_healthy():
    switch = StorageLag()
    for second in range(0, 600, 10):
        assert isinstance(look(switch, second, second + 500, float(second)), Healthy)
