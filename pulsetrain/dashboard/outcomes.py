"""What became of an action that a person confirmed. It is news of its own job, and for a minute."""

from __future__ import annotations

import time

import streamlit as st

NEWS_S = 60.0


def keep(key: str, job: str, sentence: str) -> None:
    """Tell the person of this tab what became of the action `key` on a job."""
    st.session_state[key] = (job, sentence, time.monotonic() + NEWS_S)


def drop(key: str) -> None:
    """It is news no more: the next action has begun."""
    st.session_state.pop(key, None)


def show(key: str, job: str, *, begins: str = "") -> None:
    """Draw it while it is news, on pages of its job only, and where it begins as given."""
    of_job, sentence, until_s = st.session_state.get(key, ("", "", 0.0))
    if sentence.startswith(begins) and job == of_job and time.monotonic() < until_s:
        st.success(sentence)
