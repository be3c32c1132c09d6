"""A job ends on a NaN twice, and all products are right. Training is replayed. The node that fails goes."""

from pathlib import Path

import pytest

from pulsetrain.protocol.client import HubClient, find_hub
from tests.agent.real_processes import until
from tests.hub.test_real_job import Site, opened

pytestmark = [pytest.mark.paired, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

SCRIPT = """
import os, time
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(60):
    if step == 20 and dist.get_rank() == 0 and int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < 2:
        raise FloatingPointError("the loss is nan at step 20")
    time.sleep(0.02)
    dist.barrier()
dist.destroy_process_group()
"""
REPLAY = """
import os, sys
import torch, torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
sys.exit("the loss is nan here" if "BROKEN" in os.environ else 0)
"""


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path)
    site.script.write_text(SCRIPT)
    with opened(site):
        yield site


def start(site, name, verb, *more, **environ):
    own, replay = site.env, Path(site.folder / "small.py")
    replay.write_text(REPLAY)
    site.env = own | environ
    where = ["--job", "j", "--node", name, "--nnodes", "4", "--replay", f"{replay} --layers 2", *more]
    site.nodes.append(site.spawn(verb, *where, str(site.script)))
    site.env = own


def test_a_node_with_which_training_fails_in_both_groupings_is_replaced(site):
    for name in "abd":
        start(site, name, "run")
    start(site, "x", "agent", "--standby")  # one that joined later would have to pass a check first
    assert until(lambda: len((site.ask() or {}).get("nodes", ())) == 4, 90), site.ask()
    start(site, "c", "run", BROKEN="1")

    assert site.nodes[4].wait(150) == 1
    rows = {row["node"]: row for row in HubClient(find_hub(environ=site.env)).nodes()}
    assert rows["c"]["reason"].startswith("2 replays failed with it and none passed: c: "), rows
    assert "the loss is nan here" in rows["c"]["reason"]
    assert [node.wait(120) for node in site.nodes[:4]] == [0, 0, 0, 0]
