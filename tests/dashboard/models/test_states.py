"""The states that an operator reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.dashboard.models.states import JOB_STATES, NODE_STATES, RANK_STATES, job_state, look, pill


@given(st.one_of(st.none(), st.text(), st.sampled_from(sorted(JOB_STATES))))
def test_only_the_word_healthy_is_healthy(word):
    state = job_state({"verdict": {"state": word}})
    assert state in JOB_STATES
    assert (state == "healthy") == (word == "healthy")


@pytest.mark.parametrize("job", [{}, {"verdict": None}, {"verdict": {}}])
def test_a_job_without_a_verdict_has_no_data(job):
    assert job_state(job) == "no_data"


@pytest.mark.parametrize("states", [JOB_STATES, RANK_STATES, NODE_STATES])
def test_states_are_told_apart_without_colour(states):
    signs = [(state.label, state.glyph) for state in states.values()]
    assert len({label for label, _ in signs}) == len(signs)
    assert all(label and glyph for label, glyph in signs)


def test_a_state_this_table_does_not_know_keeps_its_word_and_is_escaped():
    assert look("odd", NODE_STATES).label == "odd"
    assert "<b>" not in pill("<b>", NODE_STATES)
