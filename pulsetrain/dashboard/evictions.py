"""Evict a node: look at the cost, give a reason, confirm. Pages about a node or a rank have it in place."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

import streamlit as st

from pulsetrain.core.caller import caller
from pulsetrain.core.errors import PulsetrainError
from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard import outcomes, page
from pulsetrain.dashboard.models.nodes import can_be_evicted, plan

_DONE = "evicted"


def of_node(name: str) -> None:
    """Evict the node that a page is about. One that is not there any more cannot be evicted."""
    nodes = page.source().job(page.chosen_job()).get("nodes", [])
    node = next((n for n in nodes if n["node"] == name), None)
    tell(name)
    if node is None or not can_be_evicted(node):
        state = f"is {node['state']}" if node is not None else "takes no part in a job that runs here"
        st.html(f'<div class="muted">{escape(name)} cannot be evicted: it {escape(state)}.</div>')
        return
    with st.container(horizontal=True, vertical_alignment="bottom"):
        ask(name)
    confirm(name)


def tell(name: str = "") -> None:
    """Say what became of the last click. With a name, only what became of that node."""
    page.said()
    job = page.chosen_job()
    outcomes.show(_DONE, job, begins=f"{job}: {name} was evicted" if name else "")


def ask(node: str | None) -> None:
    """The field for the actor's name and the button that shows the cost. No node: it cannot be pressed."""
    st.text_input("In the name of", key="actor", value=caller(), width=180)
    st.button("Show the cost", key="dry_run", disabled=not node, on_click=_ask, args=(node,))


def confirm(node: str | None, done: Callable[[], None] = lambda: None) -> None:
    """What it would cost, once that was asked for, and the button that evicts. `done` is called after it."""
    answer = st.session_state.get("plan")
    if not node or not answer or answer.get("node") != node or answer.get("job") != page.chosen_job():
        return
    cost, job = plan(answer), str(answer["job"])
    with st.container(border=True):
        points = "".join(f"<li>{escape(sentence)}</li>" for sentence in cost.sentences)
        st.html(f"<b>What evicting {escape(node)} of {escape(job)} would cost</b><ul>{points}</ul>")
        with st.container(horizontal=True, vertical_alignment="bottom"):
            reason = st.text_input("Reason", key="reason", placeholder="kept in the audit log", width=420)
            st.button(
                f"Evict {node} of {job}", type="primary", key="evict", disabled=not cost.allowed,
                on_click=_evict, args=(node, job, _seen(answer), done),
                help=None if reason else "Give a reason first.",
            )  # fmt: skip


def _ask(node: str) -> None:
    outcomes.drop(_DONE)
    job = page.chosen_job()
    try:
        answer: JsonObject = page.source().client.evict(
            node, "dry run from the dashboard", dry_run=True, job=job
        )
    except PulsetrainError as error:
        answer = {"node": node, "allowed": False, "why_not": str(error), "job": job}
    st.session_state["plan"] = answer


def _seen(answer: JsonObject) -> dict[str, object]:
    """What the person looks at. The hub refuses where it has changed."""
    return {name: answer[name] for name in ("attempt", "state") if name in answer}


def _evict(node: str, job: str, seen: dict[str, object], done: Callable[[], None]) -> None:
    reason = str(st.session_state.get("reason", "")).strip()
    actor = str(st.session_state.get("actor", "")).strip()
    if not reason:
        outcomes.drop(_DONE)
        page.say("Give a reason first: it is kept in the audit log.")
        return
    try:
        page.source().client.evict(node, reason, actor=actor or caller(), job=job, seen=seen)
    except PulsetrainError as error:
        page.say(f"Not evicted: {error}")
        return
    outcomes.keep(_DONE, job, f"{job}: {node} was evicted: {reason}")
    st.session_state.pop("plan", None)
    page.source().forget("nodes", "status")
    done()
