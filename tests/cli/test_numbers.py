"""Numbers that options take."""

from __future__ import annotations

import click
import pytest

from pulsetrain.cli import pulsetrain
from pulsetrain.cli.numbers import Number, NumberRange


def options_of_numbers():
    def walk(group, path):
        for name, command in group.commands.items():
            if isinstance(command, click.Group):
                yield from walk(command, f"{path} {name}")
                continue
            for option in command.params:
                if isinstance(option.type, click.types.FloatParamType):
                    yield pytest.param(option, id=f"{path} {name} {option.opts[0]}")

    return list(walk(pulsetrain, "pulsetrain"))


@pytest.mark.parametrize("option", options_of_numbers())
@pytest.mark.parametrize("text", ["nan", "inf", "-inf"])
def test_no_option_takes_what_is_no_number(option, text):
    with pytest.raises(click.BadParameter):
        option.type_cast_value(click.Context(click.Command("any")), text)


@pytest.mark.parametrize("kind", [Number(), NumberRange(min=0)])
def test_what_is_no_number_is_named_with_what_is_allowed(kind):
    with pytest.raises(click.BadParameter, match="'inf': allowed are numbers, but not nan and inf"):
        kind("inf")
    assert kind("1e3") == 1000.0


def test_advice_without_failures_is_bad_usage(cli):
    done = cli("checkpoint", "advise", "--step-s", "1", "--mttf-s", "inf")
    assert isinstance(done.exception, click.BadParameter)
