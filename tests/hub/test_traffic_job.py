"""A job whose traffic stops while its processes live is named and goes on. One that pauses is left alone.

Hub, agents and ranks are real processes, the nodes are network namespaces.
"""

import json
import time

import pytest

from pulsetrain.protocol.client import HubClient, find_hub
from tests.agent.real_processes import until
from tests.hub.test_real_job import opened
from tests.hub.traffic_site import MISSING, TrafficSite

pytestmark = [
    pytest.mark.alone,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(MISSING), reason=MISSING or "all is there"),
]

NAMED_S = 10.0
LEARNED_S = 60.0  # of traffic, and some more for busy processors
PAUSE_S = 25.0
SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist
import pulsetrain

dist.init_process_group("gloo")
pulse = pulsetrain.init()
model = torch.nn.Linear(64, 64)
checkpointer = pulsetrain.Checkpointer({"model": model})
restored = checkpointer.restore()
for step in range(0 if restored is None else restored + 1, 1_000_000):
    total = torch.ones(1 << 17)
    with pulse.phase("forward"):
        time.sleep(0.03)
    dist.all_reduce(total)
    assert total[0].item() == dist.get_world_size()
    pulse.step()
    checkpointer.save(step)
    pause = sys.argv[1] + str(dist.get_rank())
    if os.path.exists(pause):
        how = open(pause).read()
        os.unlink(pause)
        with pulse.phase(how or "forward"):
            time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def site(tmp_path):
    site = TrafficSite(tmp_path)
    site.script.write_text(SCRIPT)
    site.env["PULSETRAIN_CONTROLLER_HANG_PATIENCE_S"] = "15"
    with opened(site):
        yield site


def start(site, *names, standby=()):
    for name in (*names, *standby):
        script = (str(site.script), str(site.folder / "pause"), str(PAUSE_S))
        site.start_node(name, len(names), *script, standby=name in standby)
    site.reach(20)


def hangs(site):
    found = (site.ask() or {}).get("findings", [])
    return [{**f, "evidence": json.loads(f["evidence"])} for f in found if f["kind"] == "hang"]


def stopped(site):
    """Whether agents tell that no port carries traffic."""
    return any(h["evidence"].get("traffic_stopped_s") for h in hangs(site))


def attempt(site):
    return (site.ask() or {}).get("attempt", 0)


def rows(site):
    return {row["node"]: row for row in HubClient(find_hub(environ=site.env)).nodes()}


def learn(site):
    """Until agents know what is usual. Returns the step then."""
    end_s = time.monotonic() + LEARNED_S
    assert until(lambda: time.monotonic() > end_s, 2 * LEARNED_S)
    return site.ask()["step"]


def test_a_link_that_carries_nothing_is_named_and_the_job_trains_without_it(site):
    start(site, "a", "b", standby=("x",))
    step = learn(site)
    assert (hangs(site), site.ask()["attempt"]) == ([], 0)

    began_s = time.monotonic()
    site.lose_all("b")
    assert until(lambda: any(h["subject"] in ("a-b", "b") for h in hangs(site)), NAMED_S), hangs(site)
    named_s = time.monotonic() - began_s
    (hang,) = [h for h in hangs(site) if h["subject"] in ("a-b", "b")]
    assert (hang["evidence"]["class"], hang["evidence"]["culprits"]) == ("network", [])
    assert until(lambda: stopped(site) or attempt(site) > 0, 40), hangs(site)  # gloo may give up first

    assert until(lambda: attempt(site) > 0, 90), site.ask()
    assert until(lambda: (site.ask() or {}).get("step", -1) > step + 200, 150), site.ask()
    states = {name: row["state"] for name, row in rows(site).items()}
    print(f"named after {named_s:.1f} s, went on after {time.monotonic() - began_s:.1f} s: {states}")
    assert (states["a"], states["x"]) == ("active", "active"), rows(site)
    assert states["b"] in ("evicted", "left"), rows(site)


def test_a_healthy_job_whose_traffic_pauses_is_left_alone(site):
    start(site, "a", "b")
    learn(site)
    seen = []
    for rank, how in ((0, "evaluate"), (1, "")):
        before = site.ask()["step"]
        (site.folder / f"pause{rank}").write_text(how)
        end_s = time.monotonic() + PAUSE_S - 2
        until(lambda end_s=end_s: seen.extend(hangs(site)) or time.monotonic() > end_s, PAUSE_S)
        assert until(lambda before=before: (site.ask() or {}).get("step", -1) > before + 50, 60)
    assert site.ask()["attempt"] == 0
    assert [h["summary"] for h in seen if h["evidence"]["class"] == "network"] == []
    assert not site.ask().get("recoveries")
