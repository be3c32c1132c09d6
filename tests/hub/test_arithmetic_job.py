"""A job ends on a NaN. The node whose products are really wrong is replaced, the other one stays."""

from pathlib import Path

import pytest

from pulsetrain import faults
from pulsetrain.faults import arithmetic
from pulsetrain.protocol.client import HubClient, find_hub
from tests.agent.real_processes import until
from tests.hub.test_real_job import Site, opened

pytestmark = [pytest.mark.paired, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

STARTUP = Path(faults.__file__).parent / "startup"
EVERY = 5  # the self-check before each launch multiplies three times, so it sees nothing
STEPS = 200
SCRIPT = """
import os, sys, time
import torch.distributed as dist
import pulsetrain

dist.init_process_group("gloo")
pulse = pulsetrain.init()
for step in range(int(sys.argv[1])):
    if step == 20 and dist.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise FloatingPointError("the loss is nan at step 20")
    with pulse.phase("forward"):
        time.sleep(0.02)
    dist.barrier()
    pulse.step()
dist.destroy_process_group()
"""


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path)
    site.script.write_text(SCRIPT)
    with opened(site):
        yield site


def start(site, name, verb, *more, wrong=False):
    own = site.env
    if wrong:
        site.env = own | {"PYTHONPATH": str(STARTUP), arithmetic.ENVIRONMENT: str(site.folder / "fault")}
    where = ["--job", "j", "--node", name, "--nnodes", "2", "--nproc-per-node", "1", *more]
    site.nodes.append(site.spawn(verb, *where, str(site.script), str(STEPS)))
    site.env = own


def test_a_node_whose_products_are_wrong_now_and_then_is_replaced_after_a_nan(site):
    arithmetic.begin(site.folder / "fault", every=EVERY)
    start(site, "a", "run", wrong=True)
    start(site, "b", "run")
    assert until(lambda: (site.ask() or {}).get("state") == "running", 90), site.ask()
    start(site, "x", "agent", "--standby")

    assert site.nodes[0].wait(120) == 1
    rows = {row["node"]: row for row in HubClient(find_hub(environ=site.env)).nodes()}
    assert "wrong products" in rows["a"]["reason"], rows
    assert [node.wait(120) for node in site.nodes[1:]] == [0, 0]
    alerts = HubClient(find_hub(environ=site.env)).alerts()
    assert [(a["subject"], a["state"]) for a in alerts if a["kind"] == "wrong_arithmetic"] == [
        ("a", "firing")
    ]
