"""Which steps a view is about."""

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.dashboard.models.steps import Window, sample, window

JOBS = [{"job": "gpt", "ranks": 8, "first_step": 100, "last_step": 119}]


def test_typed_steps_go_before_the_newest():
    assert window(JOBS, "gpt", steps="40:60", last=5) == Window(first=40, last=60)
    assert window(JOBS, "gpt", steps="", last=5) == Window(first=115, last=119)


def test_a_window_does_not_begin_before_the_job():
    chosen = window(JOBS, "gpt", steps="", last=1000)
    assert (chosen.first, chosen.width, str(chosen)) == (100, 20, "100 to 119")


def test_an_unknown_job_has_no_window_and_bad_input_is_said():
    assert window(JOBS, "other", steps="", last=5) is None
    with pytest.raises(UsageError, match="x:y"):
        window(JOBS, "gpt", steps="x:y", last=5)


def test_the_more_ranks_the_fewer_steps_are_looked_at():
    large = [{"job": "gpt", "ranks": 100_000}]
    assert sample(JOBS, "gpt") == 12_500
    assert sample(large, "gpt") == 4
    assert sample([], "gpt") == 100_000
