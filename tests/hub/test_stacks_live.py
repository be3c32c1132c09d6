"""Real ranks under a real hub: one is stopped, and the hang's verdict says in which line."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.protocol.client import HubClient, find_hub
from pulsetrain.stream.store.clickhouse import open_store
from tests.agent.real_processes import until, with_environment
from tests.hub.test_real_job import Site, opened

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
RANKS = 4
SLOWLY = {"PULSETRAIN_WATCH_STOPPED_S": "12", "PULSETRAIN_WATCH_STALL_S": "16"}
"""Stacks are read at half of the silence; for that a busy machine needs more than the default's second."""


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path)
    site.env |= SLOWLY
    flags = ("--nnodes", "1", "--nproc-per-node", str(RANKS), "--log-dir", str(tmp_path / "a"))
    with opened(site):
        site.nodes.append(site.spawn("run", "--job", "j", "--node", "a", *flags, str(site.script), "5000"))
        yield site


def rows(site, sql):
    address = find_hub(environ=site.env)
    store = open_store(address.url, token=address.token)
    try:
        return store.query(sql).to_pylist()
    finally:
        store.close()


def pid_of(site, rank):
    names = {p: Path(f"/proc/{p}/comm").read_text().strip() for p in with_environment("SITE_MARK", site.mark)}
    (pid,) = [p for p, name in names.items() if name == f"rank {rank}"]
    return pid


def test_a_person_asks_and_the_stack_of_a_stopped_rank_is_in_the_hangs_evidence(site):
    site.reach(10)
    command = [sys.executable, "-m", "pulsetrain.cli", "stacks", "j"]
    done = subprocess.run(command, env=site.env, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert f"0-{RANKS - 1}: MainThread" in done.stdout
    client = HubClient(find_hub(environ=site.env))
    assert client.stacks("j", fresh=False)["blind"] == []
    with pytest.raises(UsageError, match="no job 'nosuch' runs here; jobs here: j"):
        client.stacks("nosuch")

    os.kill(pid_of(site, 2), signal.SIGSTOP)
    found = []
    assert until(lambda: found.extend(rows(site, "SELECT * FROM findings WHERE kind = 'hang'")) or found, 100)
    evidence = json.loads(found[0]["evidence"])["stacks"]
    assert (evidence["why"], evidence["blind"]) == ("silence", [])
    assert all(c["where"] for c in evidence["clusters"])  # in the script or in torch: where the stop met it
    assert evidence["clusters"]
    kept = rows(site, "SELECT detail FROM events WHERE kind = 'stacks' AND actor = 'silence'")
    assert json.loads(kept[0]["detail"])["tree"][0]["ranks"] == f"0-{RANKS - 1}"
    assert "train.py" in kept[0]["detail"]
