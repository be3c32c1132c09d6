"""The part of Timeline where a person has the ranks shown there profiled for some steps.

The answer takes as long as the steps do, so a thread waits for it. The tab that asked looks at it once a
second, and another page may be open in the meantime.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from html import escape
from threading import Thread

import streamlit as st

from pulsetrain.analytics import profile_merge
from pulsetrain.core.errors import PulsetrainError
from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard import page
from pulsetrain.dashboard.models.text import fold

STEPS, MOST_STEPS = 3, 20
MOST_RANKS = 8  # a trace of one rank is megabytes a step
LOOK_S = 1.0
_KEY = "profile_taken"


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What was recorded. `data` is a gzipped trace of all ranks. `failed` says why a rank has none."""

    first_step: int
    steps: int
    ranks: tuple[int, ...]
    data: bytes
    failed: dict[int, str]


@dataclass(frozen=True, kw_only=True)
class _Asked:
    job: str
    ranks: tuple[int, ...]
    steps: int
    answer: Future[Profile]


def show(job: str, ranks: Sequence[int]) -> None:
    """Choose how many steps, ask, wait, download. Nothing for a job that does not run."""
    asked: _Asked | None = st.session_state.get(_KEY)
    if asked is not None and asked.job != job:
        asked = None
    if asked is None and page.source().job(job).get("state") != "running":
        return
    chosen = tuple(ranks)[:MOST_RANKS]
    with st.expander("Profile with torch.profiler", expanded=asked is not None):
        st.html(f"<div class='muted'>{escape(_explained(chosen, len(ranks)))}</div>")
        with st.container(horizontal=True, vertical_alignment="bottom"):
            steps = st.number_input("Steps to profile", 1, MOST_STEPS, STEPS, key="profile_steps", width=180)
            waiting = asked is not None and not asked.answer.done()
            st.button(
                "Profile", key="profile", disabled=waiting, on_click=_ask, args=(job, chosen, int(steps))
            )
        if asked is not None:
            st.fragment(partial(_answer, waiting), run_every=LOOK_S if waiting else None)()


def _explained(ranks: Sequence[int], shown: int) -> str:
    which = f"ranks {fold(ranks)}" if len(ranks) > 1 else f"rank {fold(ranks)}"
    first = f", the first {len(ranks)} of those shown" if shown > len(ranks) else ""
    return (
        f"Records the same steps of {which}{first}. The script needs no change. "
        "These steps are slower, the others are not."
    )


def _ask(job: str, ranks: tuple[int, ...], steps: int) -> None:
    source = page.source()
    answer: Future[Profile] = Future()
    ask = source.profile
    Thread(target=_wait, args=(answer, ask, job, ranks, steps), name="profile", daemon=True).start()
    st.session_state[_KEY] = _Asked(job=job, ranks=ranks, steps=steps, answer=answer)


def _wait(
    answer: Future[Profile],
    ask: Callable[[str, list[int], int], JsonObject],
    job: str,
    ranks: Sequence[int],
    steps: int,
) -> None:
    try:
        answer.set_result(read(ask(job, list(ranks), steps)))
    except BaseException as error:  # noqa: BLE001 - it is shown where the answer is wanted
        answer.set_exception(error)


def read(told: JsonObject) -> Profile:
    """The hub's answer as one file. Raises `CorruptData` where a rank sent something else than a profile."""
    ranks, data = profile_merge.packed(told["profiles"])
    return Profile(
        first_step=int(told["first_step"]),
        steps=int(told["steps"]),
        ranks=ranks,
        data=data,
        failed={int(rank): str(why) for rank, why in told["failed"].items()},
    )


def _answer(waiting: bool) -> None:
    asked: _Asked = st.session_state[_KEY]
    if not asked.answer.done():
        steps = "1 step is" if asked.steps == 1 else f"{asked.steps} steps are"
        st.html(f"<div role='status'>{steps} being recorded. This takes as long as the steps do.</div>")
        return
    if waiting:
        st.rerun()  # the button, which is outside this part, can be pressed again
    try:
        _taken(asked.job, asked.answer.result())
    except PulsetrainError as error:
        st.warning(f"No profile: {error}.")


def _taken(job: str, profile: Profile) -> None:
    last = profile.first_step + profile.steps - 1
    for rank, why in sorted(profile.failed.items()):
        st.warning(f"Rank {rank} has no profile: {why}.")
    if not profile.data:
        return
    st.download_button(
        f"Download steps {profile.first_step} to {last} for ui.perfetto.dev",
        data=profile.data,
        file_name=f"{job}-{profile.first_step}-{last}.profile.json.gz",
        mime="application/gzip",
        on_click="ignore",
        key="profile_download",
        help="The same file as `pulsetrain profile`.",
    )
