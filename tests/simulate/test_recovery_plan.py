"""Plans: what is refused, how a file and flags make one, and how a result is shown."""

from __future__ import annotations

import pytest

from pulsetrain.core.errors import ConfigError
from pulsetrain.simulate.recovery_plan import RecoveryPlan, RecoveryResult, load_plan


@pytest.mark.parametrize("bad", [{"replicas": 17}, {"placement": "star"}, {"days": 0}, {"software_ratio": 2}])
def test_impossible_plans_are_refused(bad):
    with pytest.raises(ConfigError, match="allowed"):
        RecoveryPlan(**bad)


def test_flags_change_what_the_file_says(tmp_path):
    file = tmp_path / "plan.toml"
    file.write_text("[recovery]\nmachines = 64\ndetect_s = 3.0\n")
    plan = load_plan(file, ["machines=128", "memory=false"])
    assert (plan.machines, plan.detect_s, plan.memory) == (128, 3.0, False)
    assert load_plan(None, []) == RecoveryPlan()


@pytest.mark.parametrize("pair", ["machines", "wheels=4", "=3"])
def test_a_flag_that_is_no_key_names_those_that_are(pair):
    with pytest.raises(ConfigError, match="warm_up_s"):
        load_plan(None, [pair])


def test_rates_and_overheads_are_those_of_the_whole_job():
    plan = RecoveryPlan(machines=10, failures_per_machine_day=8.64, memory_stall_s=6.2, storage_stall_s=1080)
    assert plan.rate_per_s == pytest.approx(0.001)
    assert plan.overhead == pytest.approx(0.1 + 0.1)
    assert RecoveryPlan(memory=False, memory_stall_s=6.2).overhead == 0


def test_a_result_is_shown_in_percent_and_hours():
    result = RecoveryResult(
        effective_ratio=0.9512, failures=3.25, from_memory=2, from_storage=1.25, lost_s={"detect": 5400.0}
    )
    row = result.as_row()
    assert (row["effective"], row["failures"], row["detect h"]) == ("95.12%", "3.2", "1.5")
    assert result.as_json()["lost_s"] == {"detect": 5400.0}
