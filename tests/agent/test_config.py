"""The agent's configuration."""

import pytest

from pulsetrain.agent.config import AgentConfig
from pulsetrain.core.config import load
from pulsetrain.core.errors import ConfigError


@pytest.mark.parametrize("key", ["watch_s", "drain_s", "echo_s", "heartbeat_s"])
def test_a_period_of_zero_is_refused_by_name(key):
    with pytest.raises(ConfigError, match=f"agent: {key} = 0.0: must be above 0"):
        load(AgentConfig, "agent", file={"agent": {key: 0.0}})


def test_a_comparison_after_no_update_is_refused():
    with pytest.raises(ConfigError, match="log_bytes = 1000: allowed: 0, or at least"):
        load(AgentConfig, "agent", file={"agent": {"log_bytes": 1000}})
    with pytest.raises(ConfigError, match="squash_compare_steps = 0: must be above 0"):
        load(AgentConfig, "agent", file={"agent": {"squash_compare_steps": 0}})


def test_the_environment_goes_before_the_file():
    file, environ = {"agent": {"drain_s": 3}}, {"PULSETRAIN_AGENT_DRAIN_S": "0.25"}
    assert load(AgentConfig, "agent", file=file, environ=environ).drain_s == 0.25


def test_reports_are_not_further_apart_than_a_minute():
    with pytest.raises(ConfigError, match=r"heartbeat_s = 61\.0: at most 60\.0"):
        load(AgentConfig, "agent", file={"agent": {"heartbeat_s": 61}})
