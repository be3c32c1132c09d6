import os
import shutil
import ssl
from dataclasses import replace
from datetime import UTC, datetime

import httpx
import pytest

from pulsetrain.core.errors import AuthError, Unavailable, UsageError
from pulsetrain.hub.kubernetes.api import BOOKMARK, LARGEST, TRIES, KubernetesApi
from pulsetrain.hub.kubernetes.errors import Conflict, Expired, NotFound, Throttled
from pulsetrain.hub.kubernetes.objects import CONFIG_MAPS, PODS, version_of
from pulsetrain.hub.private_ca import PrivateCa
from pulsetrain.protocol.kubernetes_access import ApiAccess
from tests.hub.kubernetes.emulator import Refused
from tests.hub.kubernetes.server import ApiServer


def config_map(name="c", **data):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def pod(name, **labels):
    spec = {"containers": [{"name": "agent", "image": "pulsetrain"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def test_an_object_is_created_read_changed_and_deleted(api):
    assert api.get(CONFIG_MAPS, "c") is None
    created = api.create(CONFIG_MAPS, config_map(a="1"))
    assert api.get(CONFIG_MAPS, "c") == created
    patched = api.patch(CONFIG_MAPS, "c", {"data": {"a": None, "b": "2"}})
    assert patched["data"] == {"b": "2"}
    assert api.delete(CONFIG_MAPS, "c")
    assert not api.delete(CONFIG_MAPS, "c")


def test_what_has_changed_since_it_was_read_is_a_conflict(api):
    stale = api.create(CONFIG_MAPS, config_map(a="1"))
    api.patch(CONFIG_MAPS, "c", {"data": {"a": "2"}})
    with pytest.raises(Conflict, match="has been modified"):
        api.replace(CONFIG_MAPS, "c", stale)
    with pytest.raises(Conflict):
        api.delete(CONFIG_MAPS, "c", version=version_of(stale))
    with pytest.raises(Conflict, match="already exists"):
        api.create(CONFIG_MAPS, config_map())
    with pytest.raises(NotFound):
        api.patch(CONFIG_MAPS, "none", {"data": {}})


def test_a_change_that_conflicts_is_made_again_of_what_is_there_now(api):
    api.create(CONFIG_MAPS, config_map(a="0"))
    others = iter(["5", "7"])

    def one_more(item):
        other = next(others, None)
        if other is not None:  # somebody else writes between our read and our write
            api.patch(CONFIG_MAPS, "c", {"data": {"a": other}})
        return {"data": {"a": str(int(item["data"]["a"]) + 1)}}

    assert api.change(CONFIG_MAPS, "c", one_more)
    assert api.get(CONFIG_MAPS, "c")["data"] == {"a": "8"}
    assert not api.change(CONFIG_MAPS, "c", lambda item: None)


def test_a_change_that_conflicts_each_time_ends(api, server, slept):
    api.create(CONFIG_MAPS, config_map(a="0"))
    server.fails = lambda method, path: Refused(409, "Conflict", "modified") if method == "PATCH" else None
    with pytest.raises(Conflict):
        api.change(CONFIG_MAPS, "c", lambda item: {"data": {"a": "1"}})
    assert len(slept) == TRIES - 1


def test_a_throttled_request_waits_as_long_as_it_is_told(api, server, slept):
    answers = iter([Refused(429, "TooManyRequests", "slow down", retryAfterSeconds=s) for s in (3, 600)])
    server.fails = lambda method, path: next(answers, None)
    assert api.get(CONFIG_MAPS, "c") is None
    assert slept == [3.0, 10.0]
    server.fails = lambda method, path: Refused(429, "TooManyRequests", "slow down")
    with pytest.raises(Throttled, match="slow down"):
        api.get(CONFIG_MAPS, "c")


def test_a_list_comes_in_pages_by_labels_and_fields(api, server, cluster):
    server.page = 2
    for number in range(5):
        api.create(PODS, pod(f"p{number}", job="a" if number else "b"))
    assert [p["metadata"]["name"] for p in api.list(PODS, labels="job=a").items] == ["p1", "p2", "p3", "p4"]
    assert [p["metadata"]["name"] for p in api.list(PODS, fields="metadata.name=p0").items] == ["p0"]


def test_a_list_that_expires_between_two_pages_begins_anew(api, server, cluster):
    server.page = 2
    for number in range(5):
        api.create(PODS, pod(f"p{number}"))
    once = iter([Refused(410, "Expired", "too old")])
    server.fails = lambda method, path: next(once, None) if len(server.requests) == 7 else None
    assert len(api.list(PODS).items) == 5


def test_a_watch_tells_what_happens_then_where_it_stands(api):
    start = api.list(CONFIG_MAPS).version
    api.create(CONFIG_MAPS, config_map("a"))
    api.create(PODS, pod("other"))
    api.patch(CONFIG_MAPS, "a", {"data": {"x": "1"}})
    api.delete(CONFIG_MAPS, "a")
    seen = []
    for event in api.watch(CONFIG_MAPS, start, timeout_s=5):
        seen.append(event.type)
        if event.type == BOOKMARK:
            break
    assert seen == ["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    assert int(version_of(event.item)) == int(start) + 4


def test_a_watch_from_a_version_that_is_forgotten_expires(api, cluster):
    start = api.list(CONFIG_MAPS).version
    api.create(CONFIG_MAPS, config_map("a"))
    cluster.forget()
    with pytest.raises(Expired, match="too old resource version"):
        list(api.watch(CONFIG_MAPS, start, timeout_s=5))


def test_an_eviction_that_a_budget_forbids_is_not_tried_again_here(api, server, cluster, slept):
    api.create(PODS, pod("p", job="a"))
    budget = {"spec": {"minAvailable": 1, "selector": {"matchLabels": {"job": "a"}}}}
    cluster.create("poddisruptionbudgets", "train", {"metadata": {"name": "b"}, **budget})
    with pytest.raises(Throttled, match="disruption budget"):
        api.evict("p")
    assert slept == []
    cluster.remove("poddisruptionbudgets", "train", "b")
    api.evict("p")
    assert api.get(PODS, "p") is None


@pytest.mark.parametrize(
    ("code", "kind"),
    [(401, AuthError), (403, AuthError), (422, UsageError), (500, Unavailable), (503, Unavailable)],
)
def test_what_the_api_refuses_is_one_line(api, server, code, kind):
    server.fails = lambda method, path: Refused(code, "No", "not\nthis " + "x" * 10_000)
    with pytest.raises(kind, match=r"^POST v1/namespaces/train/configmaps: not this x+$") as error:
        api.create(CONFIG_MAPS, config_map())
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (httpx.Response(200, text="<html>"), "the answer is no JSON"),
        (httpx.Response(200, text="[1]"), "the answer is no JSON object"),
        (httpx.Response(200, text="[" * 100_000), "the answer is no JSON"),
        (httpx.Response(502, text="<html>"), "status 502"),
        (httpx.Response(200, content=iter([b" " * LARGEST, b"{}"])), "larger than 64 MiB"),
    ],
)
def test_an_answer_that_is_none_of_the_apis_is_one_line(answer, line):
    access = ApiAccess(url="http://api", namespace="train")
    api = KubernetesApi(access, transport=httpx.MockTransport(lambda request: answer))
    with pytest.raises(Unavailable, match=line):
        api.get(CONFIG_MAPS, "c")


def test_an_api_that_is_away_is_one_line():
    access = ApiAccess(url="http://127.0.0.1:1", namespace="train")
    with pytest.raises(Unavailable, match="Connection refused"):
        KubernetesApi(access).get(CONFIG_MAPS, "c")


def test_a_name_that_would_be_another_path_is_refused(api, server):
    for name in ("a/../b", "..", "A", "a?x", "é", "x" * 300):
        with pytest.raises(UsageError, match="no name of a Kubernetes object"):
            api.get(CONFIG_MAPS, name)
    assert server.requests == []


def authority(folder):
    """A CA of its own: its file, and a context with a certificate of it as a server shows it."""
    ca, now = PrivateCa(folder), datetime.now(UTC)
    file = ca.create(now=now, days=1).certificate
    shown = ca.issue("api", (), now=now, days=1).certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown, shown.with_suffix(".key"))
    return file, context


def test_token_and_ca_that_were_rotated_are_read_again(tmp_path):
    (first, old), (second, new) = authority(tmp_path / "1"), authority(tmp_path / "2")
    token, ca = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("t1")
    shutil.copy(first, ca)
    with ApiServer(token="t1", context=old) as before, ApiServer(token="t2", context=new) as after:
        access = ApiAccess(url=before.url, namespace="train", token_file=token, ca_file=ca)
        api = KubernetesApi(access)
        assert api.get(CONFIG_MAPS, "c") is None
        token.write_text("t0")
        with pytest.raises(AuthError, match="Unauthorized"):
            api.get(CONFIG_MAPS, "c")
        other = KubernetesApi(replace(access, url=after.url))
        with pytest.raises(Unavailable, match="certificate verify failed"):
            other.get(CONFIG_MAPS, "c")
        token.write_text("t2")
        (tmp_path / "next").write_bytes(second.read_bytes())
        (tmp_path / "next").replace(ca)
        assert other.get(CONFIG_MAPS, "c") is None
        ca.write_text("nothing")
        os.utime(ca, (0, 0))
        with pytest.raises(UsageError, match=r"ca\.crt"):
            other.get(CONFIG_MAPS, "c")
        api.close()
        other.close()
