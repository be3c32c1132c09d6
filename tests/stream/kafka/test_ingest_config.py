"""What an operator may set of the ingest."""

from __future__ import annotations

import pytest

from pulsetrain.core.config import load
from pulsetrain.core.errors import ConfigError
from pulsetrain.stream.kafka.ingest_config import IngestConfig


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("rows", 4_999, "rows = 4999: allowed 5000 or more"),
        ("linger_s", 0, "linger_s = 0.0: allowed above 0 to 60"),
        ("linger_s", 60.5, "linger_s = 60.5: allowed above 0 to 60"),
    ],
)
def test_a_value_out_of_range_is_named(key, value, words):
    with pytest.raises(ConfigError, match=words):
        load(IngestConfig, "ingest", flags={key: value})


def test_the_limits_themselves_are_allowed():
    assert load(IngestConfig, "ingest", flags={"rows": 5_000, "linger_s": 60}).linger_s == 60
