"""A hub's settings come from one file, each part from its own table."""

import pytest

from pulsetrain.core.errors import ConfigError
from pulsetrain.hub.settings import load_settings


def test_each_part_reads_its_own_table(tmp_path):
    path = tmp_path / "pulsetrain.toml"
    path.write_text('[hub]\nport = 1\n[store]\ncluster = "main"\n[controller]\nevictions_per_hour = 2\n')
    environ = {"PULSETRAIN_STORE_DEDUPLICATION_WINDOW": "500", "PULSETRAIN_STORE": "http://elsewhere"}
    settings = load_settings(path, {"port": 3, "host": None}, {}, environ)
    assert (settings.hub.port, settings.hub.host) == (3, "127.0.0.1")
    assert (settings.store.cluster, settings.store.deduplication_window) == ("main", 500)
    assert settings.policy.evictions_per_hour == 2
    assert settings.channels == {}


def test_an_unknown_key_is_named(tmp_path):
    path = tmp_path / "pulsetrain.toml"
    path.write_text("[watch]\nnonsense = 1\n")
    with pytest.raises(ConfigError, match=r"unknown key watch\.nonsense"):
        load_settings(path, {}, {}, {})
