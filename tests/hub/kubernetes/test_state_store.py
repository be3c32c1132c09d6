"""What the contract of all stores (tests/kv/test_store.py) does not say of this one."""

import threading

import pytest

from pulsetrain.core.errors import CorruptData, Unavailable, UsageError
from pulsetrain.hub.kept_store import open_kept
from pulsetrain.hub.kubernetes.api import KubernetesApi
from pulsetrain.hub.kubernetes.state_store import NAME, ConfigMapStore, open_state
from pulsetrain.kv.election import Election
from pulsetrain.kv.store import Compare, Of, Write
from pulsetrain.protocol.kubernetes_access import ApiAccess
from tests.hub.kubernetes.emulator import Refused
from tests.kv.test_election import FakeClock

API = {"PULSETRAIN_KUBERNETES_API": "http://127.0.0.1:8001"}


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def stores(server, clock):
    """Two hubs' stores over one cluster."""
    stores = [
        ConfigMapStore(
            KubernetesApi(ApiAccess(url=server.url, namespace="train")),
            clock=clock,
            sleep=lambda seconds: None,
        )
        for _ in "ab"
    ]
    yield stores
    for store in stores:
        store.close()


def put(store, key, value, *compares):
    return store.commit(compares, [Write(key=key, value=value)])


def test_a_leader_that_stood_still_neither_leads_nor_writes(stores, clock):
    a, b = (Election(store, name, clock) for store, name in zip(stores, "ab", strict=True))
    assert a.campaign(0)
    assert put(stores[0], "budget", "1", a.fence()).ok
    stale = a.fence()
    assert not b.campaign(0)
    clock.now_s += 3.1
    assert not a.leading
    assert b.campaign(0)
    assert put(stores[1], "budget", "2", b.fence()).ok
    assert not put(stores[0], "budget", "stale", stale).ok
    assert not a.renew()
    assert stores[0].get("budget").value == "2"


def test_commits_at_the_same_time_are_all_carried_out(stores):
    def count(store):
        for _ in range(10):
            done = False
            while not done:
                entry = store.get("n")
                same = Compare(key="n", of=Of.MODIFIED, revision=entry.modified if entry else 0)
                done = put(store, "n", str(int(entry.value) + 1 if entry else 1), same).ok

    threads = [threading.Thread(target=count, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stores[0].get("n").value == "20"


def test_a_commit_that_others_are_always_in_the_way_of_ends(server, stores):
    put(stores[0], "a", "1")
    server.fails = lambda method, path: Refused(409, "Conflict", "modified") if method == "PUT" else None
    with pytest.raises(Unavailable, match="others wrote it"):
        put(stores[0], "a", "2")


def test_a_state_that_somebody_deletes_never_repeats_a_revision(cluster, stores, clock):
    clock.now_s = 1_700_000_000.0
    before = put(stores[0], "leader", "a")
    cluster.remove("configmaps", "train", NAME)
    clock.now_s += 1
    after = put(stores[1], "leader", "b")
    assert after.revision > before.revision
    stale = Compare(key="leader", of=Of.CREATED, revision=before.revision)
    assert not put(stores[0], "budget", "x", stale).ok


def test_a_damaged_state_is_one_line(cluster, stores):
    cluster.create("configmaps", "train", {"metadata": {"name": NAME}, "data": {"state.json": "{"}})
    with pytest.raises(CorruptData, match=f"ConfigMap {NAME} is damaged"):
        stores[0].get("a")


def test_what_people_have_put_beside_the_state_stays(cluster, stores):
    cluster.create(
        "configmaps", "train", {"metadata": {"name": NAME, "labels": {"team": "a"}}, "data": {"note": "ours"}}
    )
    put(stores[0], "a", "1")
    cluster.patch("configmaps", "train", NAME, {"metadata": {"labels": {"team": "b"}}})
    put(stores[1], "a", "2")
    assert cluster.get("configmaps", "train", NAME)["metadata"]["labels"] == {"team": "b"}


def test_the_address_names_a_namespace_and_a_config_map(tmp_path):
    assert isinstance(open_kept("kubernetes://train", tmp_path, API), ConfigMapStore)
    open_state("kubernetes:///mine", API).close()
    for url in (
        "kubernetes://u:p@train",
        "kubernetes://train?x=1",
        "kubernetes://train/a/b",
        "kubernetes://A",
    ):
        with pytest.raises(UsageError):
            open_state(url, API)
    with pytest.raises(UsageError, match="no Kubernetes API"):
        open_state("kubernetes://train", {})
