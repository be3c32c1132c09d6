"""The table [pool]."""

import pytest

from pulsetrain.recovery.pool.config import PoolConfig


def test_a_pool_is_off_unless_devices_are_named():
    assert not PoolConfig().enabled
    assert PoolConfig(devices_per_machine=8).enabled
    assert PoolConfig(machines="a=4").enabled


def test_machines_may_have_other_numbers_of_devices():
    config = PoolConfig(devices_per_machine=8, machines="a=4, b=0")
    assert [config.devices(host) for host in ("a", "b", "c")] == [4, 0, 8]


@pytest.mark.parametrize(
    "bad",
    [{"devices_per_machine": -1}, {"machines": "a"}, {"machines": "a=x"}, {"tick_s": 0.0}, {"pause_s": -1.0},
     {"reserve_ratio": 1.0}],
    ids=str,
)  # fmt: skip
def test_impossible_values_are_refused(bad):
    with pytest.raises(ValueError, match=f"{next(iter(bad))} = "):
        PoolConfig(**bad)


def test_prices_come_from_the_configuration():
    prices = PoolConfig(pause_s=5.0, reserve_ratio=0.1).prices
    assert (prices.pause_s, prices.reserve_ratio) == (5.0, 0.1)
