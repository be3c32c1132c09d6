"""Every state of the dashboard has a colour in a terminal."""

from __future__ import annotations

from collections.abc import Mapping

import click
import pytest
from rich.style import Style

from pulsetrain.dashboard.models import states
from pulsetrain.terminal.colours import colour

TABLES = [name for name, value in vars(states).items() if name.isupper() and isinstance(value, Mapping)]


@pytest.mark.parametrize("table", TABLES)
def test_every_state_has_a_colour_that_click_and_rich_know(table):
    for state in [*getattr(states, table).values(), states.look("unheard of", getattr(states, table))]:
        assert Style.parse(colour(state)).color is not None
        assert "x" in click.style("x", fg=colour(state))
