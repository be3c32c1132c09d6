"""Names of ports that a person lists."""

import pytest

from pulsetrain.collectors.config import CollectorConfig
from pulsetrain.core.config import load


@pytest.mark.parametrize(
    ("text", "names"),
    [("", ()), ("eth0", ("eth0",)), (" eth0, mlx5_0/1,,eth0 ", ("eth0", "mlx5_0/1"))],
)
def test_ports_are_separated_by_commas(text, names):
    assert CollectorConfig(ports=text).port_names == names


def test_ports_come_from_the_environment():
    config = load(CollectorConfig, "collectors", environ={"PULSETRAIN_COLLECTORS_PORTS": "eth0,eth1"})
    assert config.port_names == ("eth0", "eth1")


def test_a_budget_that_is_none_is_a_mistake_of_one_line():
    for ratio in (0.0, 1.5, float("nan")):
        with pytest.raises(ValueError, match=r"sampling_budget_ratio = .*allowed above 0"):
            CollectorConfig(sampling_budget_ratio=ratio)
