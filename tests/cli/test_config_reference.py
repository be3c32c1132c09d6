"""The page of all configuration keys."""

from dataclasses import dataclass

from pulsetrain.cli.config_reference import Key, keys, page
from tests.repository import ROOT


@dataclass(frozen=True, kw_only=True)
class Example:
    """A configuration class."""

    url: str
    """where to post;
    host:port for mail"""
    wait_s: float = 1.0
    """How long to wait. Uses ``a|b``."""
    plain: bool = False


def test_a_key_has_its_default_as_toml_its_unit_and_its_meaning():
    assert keys(Example) == [
        Key(name="url", default="", unit="", meaning="Where to post; host:port for mail."),
        Key(name="wait_s", default="1.0", unit="s", meaning="How long to wait. Uses `a\\|b`."),
        Key(name="plain", default="false", unit="", meaning=""),
    ]


def test_the_page_is_fresh():
    docs = ROOT / "docs" / "configuration.md"
    assert docs.read_text() == page(), "run python -m pulsetrain.cli.config_reference > docs/configuration.md"
