"""How a hub is set up."""

import pytest

from pulsetrain.hub.config import HubConfig


@pytest.mark.parametrize("name", ["port", "dashboard_port"])
@pytest.mark.parametrize("value", [-1, 65536])
def test_a_port_that_does_not_exist_is_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} = {value}: allowed 0 to 65535"):
        HubConfig(**{name: value})


def test_a_hub_listens_on_loopback_unless_told_otherwise():
    assert HubConfig().host == "127.0.0.1"
