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
