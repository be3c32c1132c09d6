"""The part of Nodes where a person stops the whole job, lets it go on, takes it off a node, or resizes it.

As an eviction it shows first what it would cost, and asks for a reason, which is kept.
"""

from __future__ import annotations

from html import escape

import streamlit as st

from pulsetrain.core.caller import caller
from pulsetrain.core.errors import PulsetrainError
from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard import outcomes, page
from pulsetrain.dashboard.models.moves import WORDS, asked_for, choices, cost, places, under_way

_PLAN, _DONE = "move_plan", "moved"


def show() -> None:
    """Choose, look at the cost, give a reason, confirm."""
    name = page.chosen_job()
    job = page.source().job(name)
    node = str(st.query_params.get("node", ""))
    possible = choices(job, node)
    if not possible:
        return
    st.subheader("Stop or move the job", anchor=False)
    page.said()
    outcomes.show(_DONE, name)
    if told := under_way(job):
        st.html(f'<div class="muted">{escape(told)}</div>')
    with st.container(horizontal=True, vertical_alignment="bottom"):
        for what in possible:
            if what == "resize":
                now = int(job.get("devices") or 1)
                st.number_input("Devices", min_value=1, value=now, step=1, key="move_devices", width=120)
            if what == "resume" and job.get("state") == "preempted":
                st.multiselect(
                    "On these nodes", places(page.source().nodes(), name), key="move_nodes", width=320,
                    placeholder="those that it has",
                )  # fmt: skip
            words = f"Take the job off {node}" if what == "migrate" else WORDS[what]
            st.button(words, key=f"move_{what}", on_click=_ask, args=(name, what, node))
    plan = st.session_state.get(_PLAN)
    if plan and plan["job"] == name and plan["what"] in possible:
        _confirm(plan)


def _ask(job: str, what: str, node: str) -> None:
    """Ask the hub what it would cost. Nothing is done yet."""
    outcomes.drop(_DONE)
    chosen = node if what == "migrate" else ""
    devices = int(st.session_state.get("move_devices", 1)) if what == "resize" else 0
    nodes = list(st.session_state.get("move_nodes", ())) if what == "resume" else []
    try:
        plan = page.source().client.move(
            job, what, "dry run from the dashboard", node=chosen, devices=devices, nodes=nodes, dry_run=True
        )
    except PulsetrainError as error:
        plan = {"job": job, "what": what, "node": chosen, "can_do": False, "why_not": str(error)}
    st.session_state[_PLAN] = plan


def _confirm(plan: JsonObject) -> None:
    with st.container(border=True):
        points = "".join(f"<li>{escape(sentence)}</li>" for sentence in cost(plan))
        st.html(f"<ul>{points}</ul>")
        with st.container(horizontal=True, vertical_alignment="bottom"):
            actor = st.text_input("In the name of", key="move_actor", value=caller(), width=180)
            reason = st.text_input(
                "Reason", key="move_reason", placeholder="kept in the audit log", width=420
            )
            st.button(
                WORDS[plan["what"]], type="primary", key="move", disabled=not plan["can_do"], on_click=_move,
                args=(plan, actor), help=None if reason else "Give a reason first.",
            )  # fmt: skip


def _move(plan: JsonObject, actor: str) -> None:
    reason = str(st.session_state.get("move_reason", "")).strip()
    if not reason:
        page.say("Give a reason first: it is kept in the audit log.")
        return
    try:
        answer = page.source().client.move(
            plan["job"],
            plan["what"],
            reason,
            node=plan["node"],
            actor=actor or caller(),
            devices=plan.get("devices", 0),
            nodes=plan.get("on_nodes", ()),
            seen={"attempt": plan["attempt"]} if "attempt" in plan else {},
        )
    except PulsetrainError as error:
        page.say(f"Not done: {error}")
        return
    outcomes.keep(_DONE, plan["job"], f"{plan['job']}: {asked_for(answer, reason)}")
    st.session_state.pop(_PLAN, None)
    page.source().forget("nodes", "status")
