"""The colours of states in a terminal, by the names that every terminal knows. Its own theme applies."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pulsetrain.dashboard.models.states import State

_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "#009E73": "green",
        "#0072B2": "bright_blue",
        "#4C7A9B": "blue",
        "#56B4E9": "cyan",
        "#8a8f98": "bright_black",
        "#8B6BD0": "bright_magenta",
        "#A3195B": "magenta",
        "#CC79A7": "magenta",
        "#D55E00": "red",
        "#E69F00": "yellow",
    }
)


def colour(state: State) -> str:
    """The name of the colour that comes closest to the state's own on the dashboard."""
    return _NAMES[state.colour]
