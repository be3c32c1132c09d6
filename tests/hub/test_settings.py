"""One TOML file, the environment and flags make a hub's settings."""

import pytest

from pulsetrain.core.errors import ConfigError
from pulsetrain.hub.settings import load_settings


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path):
    file = tmp_path / "hub.toml"
    file.write_text(
        "[hub]\nport = 1\nhost = '0.0.0.0'\n[watch]\nstall_s = 9\n[controller]\nobserve_only = true\n"
        "[notify.ops]\nkind = 'webhook'\nurl = 'http://x'\n"
    )
    settings = load_settings(file, {"port": 3}, {"observe_only": None}, {"PULSETRAIN_HUB_PORT": "2"})
    assert (settings.hub.port, settings.hub.host, settings.watch.stall_s) == (3, "0.0.0.0", 9)
    assert settings.policy.observe_only
    assert list(settings.channels) == ["ops"]


def test_without_a_file_the_environment_counts():
    settings = load_settings(None, {}, {}, {"PULSETRAIN_CONTROLLER_EVICTIONS_PER_HOUR": "7"})
    assert settings.policy.evictions_per_hour == 7
    assert settings.channels == {}


@pytest.mark.parametrize("text", ["[hub]\nprot = 1\n", "[nosuch]\n", "[watch]\nstall_s = -1\n"])
def test_what_nobody_reads_or_understands_is_an_error(tmp_path, text):
    file = tmp_path / "hub.toml"
    file.write_text(text)
    with pytest.raises(ConfigError):
        load_settings(file, {}, {}, {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("notify = 3", r"p\.toml: notify = 3: not a table; write \[notify\.NAME\]"),
        ("[notify]\nkind = 'slack'", r"notify\.kind = 'slack': not a table"),
        (
            "[notify.a]\nkind = 'slack'\nurl = 'http://a'\ntimeout_s = 'long'",
            r"notify\.a\.timeout_s = 'long'",
        ),
    ],
)
def test_a_wrong_channel_is_one_line(tmp_path, text, words):
    path = tmp_path / "p.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_settings(path, {}, {}, {})
