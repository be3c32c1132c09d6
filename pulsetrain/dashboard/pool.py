"""Pool: the jobs that share the devices of this hub, what each gets, and what was moved for whom."""

from __future__ import annotations

from html import escape

import streamlit as st

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard import page, parts
from pulsetrain.dashboard.models import pool as model
from pulsetrain.dashboard.models.states import JOB_STATES, pill
from pulsetrain.dashboard.models.text import ago

_MOST_NODES = 4


def show() -> None:
    """The page."""
    page.live(_body)


def _body() -> None:
    status = page.source().status()
    pool = status.get("pool")
    if not pool:
        page.empty(
            "This hub has no pool: each job keeps its own machines.",
            "Name devices_per_machine in the table [pool] of the hub's configuration to share them.",
        )
        return
    st.html(f"<div><b>{escape(model.headline(pool))}.</b></div>")
    _jobs(model.pool_jobs(pool, status.get("jobs", [])))
    _actions(pool["actions"])


def _jobs(jobs: list[model.PoolJob]) -> None:
    if not jobs:
        page.empty("No job shares the pool now.", "Start one with `pulsetrain run --tier`.")
        return
    states = {line.job: line.state for line in page.lines()}
    page.table(
        ["job", "tier", "state", "devices", "nodes", "share of its last hour", "promised", "under way"],
        [_job(job, states.get(job.job, "no_data")) for job in jobs],
        right=(3, 5),
    )


def _job(job: model.PoolJob, state: str) -> list[str]:
    more = f" and {len(job.nodes) - _MOST_NODES:,} more" if len(job.nodes) > _MOST_NODES else ""
    nodes = ", ".join(parts.node_link(job.job, node) for node in job.nodes[:_MOST_NODES])
    return [
        f'<a href="{page.href("overview", job=job.job)}">{escape(job.job)}</a>',
        escape(job.tier),
        pill(state, JOB_STATES),
        f"{job.devices:,} of {job.most_devices:,}",
        f"{nodes}{more}" or "-",
        escape(model.share_text(job)),
        "yes" if job.promised else "no",
        escape(job.doing) or "-",
    ]


def _actions(actions: list[JsonObject]) -> None:
    if not actions:
        page.empty("The pool has done nothing yet.", "It acts when a job arrives, ends or loses devices.")
        return
    page.table(
        ["when", "action", "job", "devices by node", "reason", "price, device-seconds"],
        [
            [
                ago(int(action["ts_ns"]), page.now_ns()),
                escape(model.action_text(action)),
                escape(str(action["job"])),
                escape(model.change_text(action)),
                escape(str(action["reason"])),
                f"{action['price_device_s']:,.0f}",
            ]
            for action in reversed(actions)
        ],
        right=(5,),
    )
