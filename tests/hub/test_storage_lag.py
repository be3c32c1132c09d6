"""Records that stop arriving are no data; a job that stands still is not their fault."""

from __future__ import annotations

from pulsetrain.analytics.verdict import Healthy
from pulsetrain.hub.storage_lag import LIMIT_S, StorageLag
from pulsetrain.records.findings import Finding


def look(lag, stored, live, now_s):
    return lag.look("gpt", 1, stored_step=stored, live_step=live, now_s=now_s, now_ns=int(now_s * 1e9))


def test_steps_that_are_not_stored_for_long_are_no_data():
    lag = StorageLag()
    assert isinstance(look(lag, 10, 10, 0.0), Healthy)
    assert isinstance(look(lag, 10, 40, LIMIT_S - 0.1), Healthy)
    finding = look(lag, 10, 60, LIMIT_S)
    assert isinstance(finding, Finding)
    assert (finding.kind, finding.severity, finding.subject) == ("no_data", "critical", "gpt")
    assert isinstance(look(lag, 60, 61, LIMIT_S + 1), Healthy)


def test_nothing_stored_from_the_first_step_on_is_no_data_too():
    lag = StorageLag()
    look(lag, -1, 3, 0.0)
    assert isinstance(look(lag, -1, 90, LIMIT_S), Finding)


def test_a_job_that_stands_still_accuses_nobody():
    lag = StorageLag()
    for second in range(0, 600, 10):
        assert isinstance(look(lag, 10, 10, float(second)), Healthy)


def test_a_store_that_lags_but_moves_is_healthy():
    lag = StorageLag()
    for second in range(0, 600, 10):
        assert isinstance(look(lag, second, second + 500, float(second)), Healthy)
