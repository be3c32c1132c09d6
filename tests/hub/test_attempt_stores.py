"""The hub's side of the process that hosts rendezvous stores, with that process itself."""

import asyncio
import os
import signal

import psutil
import pytest
from torch.distributed import DistNetworkError

from pulsetrain.core.errors import Unavailable
from pulsetrain.hub.attempt_stores import AttemptStores, stores_of
from pulsetrain.hub.config import HubConfig
from pulsetrain.recovery.store_host import NoStores
from tests.agent.real_processes import alive, until
from tests.hub.test_store_server import client

HOST = "127.0.0.1"


@pytest.mark.parametrize(
    ("host", "rendezvous", "hosted"),
    [
        ("127.0.0.1", "auto", False),
        ("localhost", "auto", False),
        ("0.0.0.0", "auto", True),
        ("10.0.0.5", "auto", True),
        ("10.0.0.5", "node", False),
        ("127.0.0.1", "hub", True),
    ],
)
def test_a_hub_that_other_machines_reach_hosts_the_stores(host, rendezvous, hosted):
    stores = stores_of(HubConfig(host=host, rendezvous=rendezvous))
    assert isinstance(stores, AttemptStores if hosted else NoStores)


def test_another_place_is_refused():
    with pytest.raises(ValueError, match="rendezvous = 'moon': allowed auto, hub, node"):
        HubConfig(rendezvous="moon")


def opened(stores, job="j"):
    return asyncio.run(stores.open(job))


@pytest.fixture
def stores():
    stores = AttemptStores(HOST, idle_s=0.5)
    yield stores
    stores.close()
    assert until(lambda: not stores.pid, 30)


@pytest.mark.integration
@pytest.mark.slow
def test_a_store_serves_its_ranks_without_the_hub_and_ends_after_them(stores):
    stores.prepare()
    pid = stores.pid
    rank = client(opened(stores))
    assert stores.pid == pid
    stores.close()
    rank.set("key", "value")
    assert not until(lambda: not alive(pid), 3)
    assert rank.get("key") == b"value"
    del rank
    assert until(lambda: not stores.pid, 20)


@pytest.mark.integration
@pytest.mark.slow
def test_a_process_that_was_killed_is_started_anew_for_the_next_attempt(stores):
    rank = client(opened(stores))
    killed = stores.pid
    os.kill(killed, signal.SIGKILL)
    psutil.Process(killed).wait(10)
    with pytest.raises(DistNetworkError):
        rank.check(["key"])
    again = client(opened(stores))
    again.set("key", "value")
    assert stores.pid not in (0, killed)
    del again


@pytest.mark.integration
@pytest.mark.slow
def test_what_cannot_be_hosted_is_said_and_a_job_that_does_not_reach_it_is_left_alone():
    stores = AttemptStores("203.0.113.7", idle_s=0.1)  # nobody has this address
    try:
        with pytest.raises(Unavailable, match=r"no store on 203\.0\.113\.7: OSError"):
            opened(stores)
        stores.give_up("j")
        assert opened(stores) == 0
    finally:
        stores.close()
        assert until(lambda: not stores.pid, 30)
