"""The plan of a pool: what it refuses, and how it is read."""

from __future__ import annotations

import pytest

from pulsetrain.core.errors import ConfigError
from pulsetrain.simulate.schedule_plan import SchedulePlan, load_schedule_plan


@pytest.mark.parametrize(
    "bad",
    [{"devices": 4}, {"devices": 10001}, {"largest_devices": 20000}, {"days": 0.0}, {"jobs": 0},
     {"tick_s": 0.0}, {"premium_load": -0.1}, {"pause_s": -1.0}, {"elastic_ratio": 1.5},
     {"reserve_ratio": 1.0}],
    ids=str,
)  # fmt: skip
def test_impossible_values_are_refused(bad):
    with pytest.raises(ConfigError, match="allowed"):
        SchedulePlan(**bad)


def test_flags_go_before_the_file(tmp_path):
    file = tmp_path / "plan.toml"
    file.write_text("[schedule]\ndays = 3.0\ndevices = 800\n")
    plan = load_schedule_plan(file, ["days=4"])
    assert (plan.days, plan.nodes) == (4.0, 100)
    with pytest.raises(ConfigError, match="nonsense"):
        load_schedule_plan(None, ["nonsense=1"])
