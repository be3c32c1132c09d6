"""The description of a rank's instrumentation: short, whole, and read by the agent."""

from __future__ import annotations

import json

import pytest


def described(watched):
    return json.loads(watched.reader.description())


def test_a_rank_begins_with_nothing_known(watched):
    assert set(described(watched).values()) == {"none"}


def test_what_the_script_gives_itself_is_explicit(watched):
    watched.handle.log(loss=1.0)
    watched.handle.step(tokens=3)
    assert described(watched) == {
        "steps": "explicit",
        "phases": "none",
        "loss": "explicit",
        "tokens": "explicit",
        "flops": "none",
    }


def test_an_entry_that_does_not_fit_is_refused_and_the_others_stay(watched):
    watched.handle.description.set("framework", "transformers 5.1")
    with pytest.raises(ValueError, match="there is room for 1016"):
        watched.handle.description.set("long", "x" * 1000)
    assert described(watched)["framework"] == "transformers 5.1"
    assert "long" not in described(watched)
