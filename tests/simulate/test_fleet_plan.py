"""The plan of a fleet: what it refuses, and how it is read."""

from __future__ import annotations

import pytest

from pulsetrain.core.errors import ConfigError
from pulsetrain.simulate.fleet_plan import FleetPlan, load_fleet_plan


@pytest.mark.parametrize(
    "bad",
    [{"devices": 1000}, {"blast_radius": 5}, {"smallest_degree": 33}, {"days": 0.0}, {"hardware_ratio": 2.0},
     {"power_limit": 0.5}, {"failure_stop_s": -1.0}, {"spare_domains": -1}, {"local_batch": 0}],
    ids=str,
)  # fmt: skip
def test_impossible_values_are_refused(bad):
    with pytest.raises(ConfigError, match="allowed"):
        FleetPlan(**bad)


def test_flags_go_before_the_file(tmp_path):
    file = tmp_path / "plan.toml"
    file.write_text("[fleet]\ndays = 3.0\nspare_domains = 8\n")
    plan = load_fleet_plan(file, ["days=4"])
    assert (plan.days, plan.spare_domains, plan.domains) == (4.0, 8, 1032)
    with pytest.raises(ConfigError, match="nonsense"):
        load_fleet_plan(None, ["nonsense=1"])
