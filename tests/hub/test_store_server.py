"""The process that hosts rendezvous stores."""

import os
import subprocess
import sys
from datetime import timedelta

import psutil
import pytest
from torch.distributed import TCPStore

from pulsetrain.hub.store_server import Stores, connected, wait_for_ranks

pytestmark = pytest.mark.integration

HOST = "127.0.0.1"


def client(port):
    return TCPStore(HOST, port, is_master=False, timeout=timedelta(seconds=5))


def test_each_attempt_gets_a_store_without_the_keys_of_the_one_before():
    stores = Stores(HOST)
    first = stores.open("j")
    client(first).set("key", "value")
    other = stores.open("k")
    second = stores.open("j")
    assert stores.ports == {other, second}
    assert not client(second).check(["key"])
    with pytest.raises(RuntimeError):
        client(first)


def test_it_listens_on_the_address_of_the_hub_alone():
    stores = Stores(HOST)
    port = stores.open("j")
    found = [c for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    assert [c.laddr.ip for c in found if c.laddr.port == port] == [HOST]


def test_its_own_connection_is_nobody_and_a_rank_is_somebody():
    stores = Stores(HOST)
    ports = frozenset({stores.open("j")})
    assert not connected(ports)
    script = (
        "import sys; from torch.distributed import TCPStore\n"
        "store = TCPStore('127.0.0.1', int(sys.argv[1]), is_master=False)\n"
        "print('there', flush=True); sys.stdin.read()"
    )
    rank = subprocess.Popen(
        [sys.executable, "-c", script, str(*ports)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ,
    )
    with rank:
        assert rank.stdout.readline() == b"there\n"
        assert connected(ports)
        rank.stdin.close()


def test_it_ends_only_when_nobody_was_there_for_a_while():
    seen, now_s = iter([True, True, False, True, *[False] * 100]), [0.0]

    def sleep(seconds):
        now_s[0] += seconds

    wait_for_ranks(lambda: next(seen), 5.0, clock=lambda: now_s[0], sleep=sleep)
    assert now_s[0] == 9.0  # last seen after four seconds
