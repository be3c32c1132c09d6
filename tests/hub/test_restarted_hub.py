"""A hub is killed and started again on its folder: it says what it said before, within five seconds."""

from __future__ import annotations

import contextlib
import re
import socket
import sys
import time

import pytest

from pulsetrain.core.errors import PulsetrainError
from pulsetrain.protocol.client import HubClient, find_hub
from tests.dashboard.hub_process import process

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PATIENCE_S, LIMIT_S = 60, 5.0
PLAN = """
[[fault]]
kind = "slow_rank"
at_s = 2
rank = 5
factor = 1.6

[[fault]]
kind = "flapping_link"
at_s = 2
node = "sim-00000"
every_s = 1
"""


def command(*words):
    return [sys.executable, "-m", "pulsetrain.cli", *words]


def until(seen, wanted, timeout_s=PATIENCE_S):
    """What `seen` returns as soon as it is as wanted, else the last of it."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        found = seen()
        if wanted(found) or time.monotonic() > deadline_s:
            return found
        time.sleep(0.1)


@contextlib.contextmanager
def hub(folder, port):
    """A hub until it is killed. Yields its API as soon as it answers."""
    with process(command("serve", "--data", str(folder), "--port", str(port), "--no-dashboard")):
        yield until(lambda: answering(folder), lambda client: client is not None)


def answering(folder):
    """The hub of a folder, None while it does not answer."""
    with contextlib.suppress(PulsetrainError):
        client = HubClient(find_hub(environ={}, data=folder), timeout_s=5.0)
        client.status()
        return client
    return None


def known(client):
    """What a person is told: verdict, nodes, alerts and incidents. Percentages are measured anew."""
    job = next(iter(client.status()["jobs"]), None)
    if job:
        job["verdict"]["sentence"] = re.sub(r"\d+%", "so much", job["verdict"]["sentence"])
    alerts, incidents = client.alerts(), client.incidents()
    return {
        "verdict": job and job["verdict"],
        "nodes": {n["node"]: (n["state"], n["node_rank"], n["ranks"]) for n in client.nodes()},
        "alerts": {a["id"]: (a["state"], a["kind"], a["subject"], a["acknowledged_by"]) for a in alerts},
        "incidents": [
            (i["id"], i["state"], i["root"], i["since_ns"], [line["kind"] for line in i["timeline"]])
            for i in incidents
        ],
    }


def firing(client):
    return {a["kind"]: a["id"] for a in client.alerts() if a["state"] == "firing"}


def told(found, kinds):
    """Whether there is one incident, of these kinds of findings."""
    return [set(incident[-1]) for incident in found["incidents"]] == [set(kinds)]


def stored(client):
    """Whether the hub has stored what it has found. What it found a moment before its death is found anew."""
    rows = client.status()["hub"]["written_rows"]
    time.sleep(1)
    return bool(client.status()["hub"]["written_rows"] == rows)


def noted(said, found):
    """`found`, with the state of its verdict put down."""
    said += [found["verdict"]["state"]] if found["verdict"] else []
    return found


def test_a_killed_hub_comes_back_with_what_it_knew(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN)
    folder = tmp_path / "hub"
    shape = ("--nodes", "4", "--ranks-per-node", "2", "--standbys", "1", "--step-s", "0.5")
    where = ("--data", str(folder), "--plan", str(plan), "--relaunch-s", "1", "--metrics-s", "1")
    with contextlib.ExitStack() as fleet:
        with hub(folder, port) as client:
            fleet.enter_context(process(command("simulate", "fleet-live", *shape, *where)))
            alerts = until(lambda: firing(client), lambda found: {"straggler", "link_flap"} <= found.keys())
            client.acknowledge(alerts["straggler"], "somebody looks at it")
            before = until(lambda: known(client), lambda found: told(found, alerts))
            assert until(lambda: stored(client), bool)
        assert told(before, alerts)
        said = []
        with hub(folder, port) as client:
            after = until(lambda: noted(said, known(client)), lambda after: after == before, LIMIT_S)
        assert after == before
        assert "healthy" not in said
