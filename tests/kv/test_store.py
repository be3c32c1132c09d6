"""The contract of a key-value store, over every implementation."""

import threading
import time
import uuid

import pytest

from pulsetrain.hub.kubernetes.api import KubernetesApi
from pulsetrain.hub.kubernetes.state_store import ConfigMapStore
from pulsetrain.kv.address import parse
from pulsetrain.kv.etcd import EtcdStore
from pulsetrain.kv.files import FileStore
from pulsetrain.kv.store import Change, Compare, Of, Write
from pulsetrain.protocol.kubernetes_access import ApiAccess
from tests.hub.kubernetes.emulator import Emulator
from tests.hub.kubernetes.models import check
from tests.hub.kubernetes.server import ApiServer
from tests.kv.cluster import Cluster, needs_etcd


@pytest.fixture(scope="module")
def etcd_url(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster.url


@pytest.fixture
def api_server():
    with ApiServer(Emulator(check=check)) as server:
        yield server


@pytest.fixture(
    params=["files", "kubernetes", pytest.param("etcd", marks=[pytest.mark.integration, needs_etcd])],
)
def store(request, tmp_path):
    if request.param == "files":
        store = FileStore(tmp_path)
    elif request.param == "kubernetes":
        server = request.getfixturevalue("api_server")
        store = ConfigMapStore(KubernetesApi(ApiAccess(url=server.url, namespace="train")), holder="hub-0")
    else:
        address = parse(request.getfixturevalue("etcd_url"), {})
        store = EtcdStore(address, prefix=f"/{uuid.uuid4().hex}/")
    yield store
    store.close()


def put(store, key, value, *compares, lease=0):
    return store.commit(compares, [Write(key=key, value=value, lease=lease)])


def is_absent(key):
    return Compare(key=key, of=Of.CREATED, revision=0)


def test_what_was_written_is_read_with_its_revisions(store):
    assert store.get("a") is None
    first = put(store, "a", "ä 1")
    second = put(store, "a", "2")
    entry = store.get("a")
    assert (entry.value, entry.created, entry.modified) == ("2", first.revision, second.revision)
    assert first.ok
    assert first.revision < second.revision


def test_keys_are_listed_by_prefix_and_in_order(store):
    for key in ("nodes/b", "nodes/a", "node", "other"):
        put(store, key, key)
    listing = store.entries("nodes/")
    assert [e.key for e in listing.entries] == ["nodes/a", "nodes/b"]
    assert listing.revision >= max(e.modified for e in listing.entries)
    assert len(store.entries("").entries) == 4


def test_a_transaction_writes_all_or_nothing(store):
    writes = [Write(key="a", value="1"), Write(key="b", value="1")]
    assert store.commit([is_absent("a")], writes).ok
    assert not store.commit([is_absent("c"), is_absent("a")], [Write(key="c", value="2")]).ok
    assert store.get("c") is None
    seen = store.get("a")
    same = Compare(key="a", of=Of.MODIFIED, revision=seen.modified)
    assert store.commit([same], [Write(key="a", value=None), Write(key="b", value="3")]).ok
    assert not store.commit([same], [Write(key="b", value="4")]).ok
    assert [(e.key, e.value) for e in store.entries("").entries] == [("b", "3")]


def test_a_key_that_was_deleted_is_created_anew(store):
    put(store, "a", "1")
    before = store.get("a")
    put(store, "a", None)
    put(store, "a", "1")
    stale = Compare(key="a", of=Of.CREATED, revision=before.created)
    assert not put(store, "b", "2", stale).ok


def test_changes_come_in_order_and_a_watch_waits_for_them(store):
    start = put(store, "a/1", "1").revision
    put(store, "other", "x")
    put(store, "a/2", "2")
    put(store, "a/1", None)
    seen = store.changes("a/", after=start, timeout_s=5)
    while len(seen) < 2:
        seen += store.changes("a/", after=seen[-1].revision, timeout_s=5)
    assert [(c.key, c.value) for c in seen] == [("a/2", "2"), ("a/1", None)]
    threading.Timer(0.05, put, (store, "a/3", "3")).start()
    later = store.changes("a/", after=seen[-1].revision, timeout_s=10)
    assert [(c.key, c.value) for c in later] == [("a/3", "3")]
    assert store.changes("a/", after=later[-1].revision, timeout_s=0.01) == ()


def test_revoking_a_lease_deletes_its_keys(store):
    lease = store.grant(60)
    put(store, "leader", "me", lease=lease)
    put(store, "other", "stays")
    before = store.get("leader")
    assert before.lease == lease
    assert store.keep_alive(lease) >= 60
    store.revoke(lease)
    assert store.keep_alive(lease) == 0
    gone = store.changes("leader", after=before.modified, timeout_s=5)
    assert gone == (Change(key="leader", value=None, revision=gone[0].revision),)
    assert store.get("other").value == "stays"
    assert not put(store, "leader", "me", lease=lease).ok
    store.revoke(lease)


@pytest.mark.integration
def test_a_lease_that_nobody_keeps_alive_ends(store):
    lease = store.grant(2)
    kept = store.grant(2)
    put(store, "dead", "x", lease=lease)
    start = put(store, "alive", "x", lease=kept).revision
    deadline = time.monotonic() + 20
    changes = ()
    while not changes and time.monotonic() < deadline:
        changes = store.changes("dead", after=start, timeout_s=0.5)
        assert store.keep_alive(kept) > 0
    assert [(c.key, c.value) for c in changes] == [("dead", None)]
    assert store.get("alive") is not None
