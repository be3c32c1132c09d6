"""The part of Overview where a person decides on a hang: wait, or restart now.

As an eviction it shows first what would be done, and asks for a reason, which is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from types import MappingProxyType

import streamlit as st

from pulsetrain.core.caller import caller
from pulsetrain.core.errors import PulsetrainError
from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard import outcomes, page
from pulsetrain.dashboard.models.answer import decision_cost

_MINUTES: Mapping[str, float] = MappingProxyType(
    {"10 minutes": 10.0, "30 minutes": 30.0, "1 hour": 60.0, "4 hours": 240.0, "1 day": 1440.0}
)
_PLAN, _DONE = "hang_plan", "hang_decided"


def show() -> None:
    """Draw it while a hang is pending, and what was decided last while that is news."""
    page.said()
    job = page.chosen_job()
    outcomes.show(_DONE, job)
    if not page.source().job(job).get("pending_hang"):
        st.session_state.pop(_PLAN, None)
        return
    with st.container(border=True):
        st.html("<b>A hang is pending. Decide what becomes of the job.</b>")
        with st.container(horizontal=True, vertical_alignment="bottom"):
            span = st.selectbox("Leave it alone for", list(_MINUTES), key="hang_span", width=160)
            st.button("Wait", key="hang_wait", on_click=_ask, args=(job, "wait", span))
            st.button("Restart now", key="hang_now", on_click=_ask, args=(job, "now", span))
        plan = st.session_state.get(_PLAN)
        if plan and plan["job"] == job:
            _confirm(plan)


def _ask(job: str, decision: str, span: str) -> None:
    """Ask the hub whether it could be done. Nothing is decided yet."""
    outcomes.drop(_DONE)
    plan: JsonObject = {"job": job, "decision": decision, "span": span, "can_do": False, "why_not": ""}
    try:
        answer = page.source().client.decide_hang(
            job, decision, "dry run from the dashboard", seconds=60.0 * _MINUTES[span], dry_run=True
        )
    except PulsetrainError as error:
        plan["why_not"] = str(error)
    else:
        plan |= {"can_do": answer["can_do"], "hang": answer["pending_hang"]}
    st.session_state[_PLAN] = plan


def _confirm(plan: JsonObject) -> None:
    points = "".join(f"<li>{escape(sentence)}</li>" for sentence in decision_cost(plan, page.now_ns()))
    st.html(f"<ul>{points}</ul>")
    words = f"Leave {plan['job']} alone" if plan["decision"] == "wait" else f"Restart {plan['job']}"
    with st.container(horizontal=True, vertical_alignment="bottom"):
        actor = st.text_input("In the name of", key="hang_actor", value=caller(), width=180)
        reason = st.text_input("Reason", key="hang_reason", placeholder="kept in the audit log", width=420)
        st.button(
            words, type="primary", key="hang_decide", disabled=not plan["can_do"], on_click=_decide,
            args=(plan, actor), help=None if reason else "Give a reason first.",
        )  # fmt: skip


def _decide(plan: JsonObject, actor: str) -> None:
    reason = str(st.session_state.get("hang_reason", "")).strip()
    if not reason:
        page.say("Give a reason first: it is kept in the audit log.")
        return
    seconds = 60.0 * _MINUTES[plan["span"]]
    hang = plan.get("hang") or {}
    try:
        page.source().client.decide_hang(
            plan["job"],
            plan["decision"],
            reason,
            seconds=seconds,
            actor=actor or caller(),
            seen={name: hang[name] for name in ("rank", "since_ns") if name in hang},
        )
    except PulsetrainError as error:
        page.say(f"Not done: {error}")
        return
    what = f"is left alone for {plan['span']}" if plan["decision"] == "wait" else "is restarted now"
    outcomes.keep(_DONE, plan["job"], f"{plan['job']} {what}: {reason}")
    st.session_state.pop(_PLAN, None)
    page.source().forget("status")
