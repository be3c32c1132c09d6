"""How the client behaves when members do not answer. A transport stands in for etcd here."""

import json

import httpx
import pytest

from pulsetrain.core.errors import Unavailable, UsageError
from pulsetrain.kv.address import parse
from pulsetrain.kv.etcd import EtcdStore

EMPTY = {"header": {"revision": "7"}}


def client(answer, url="etcd://a,b,c"):
    return EtcdStore(parse(url, {}), transport=httpx.MockTransport(answer))


def test_the_next_member_is_asked_where_one_does_not_answer_and_kept():
    asked = []

    def answer(request):
        asked.append(request.url.host)
        if request.url.host == "a":
            raise httpx.ConnectError("refused")
        if request.url.host == "b":
            return httpx.Response(503, json={"code": 14, "message": "etcdserver: no leader"})
        return httpx.Response(200, json=EMPTY)

    store = client(answer)
    assert store.entries("x").revision == 7
    store.get("x")
    assert asked == ["a", "b", "c", "c"]
    store.close()


def test_no_member_is_one_line_that_names_them_without_the_password():
    def answer(request):
        raise httpx.ConnectError("refused")

    store = client(answer, "etcd://u:s3cret@a,b")
    with pytest.raises(Unavailable, match=r"etcd http://a:2379,http://b:2379: refused") as error:
        store.get("x")
    assert "s3cret" not in str(error.value)
    store.close()


REFUSALS = [
    (401, 16, "etcdserver: invalid auth token"),
    (400, 3, "etcdserver: revision of auth store is old"),  # of a JWT, after a change of users or roles
]


class GuardedEtcd:
    """Takes the newest token that it gave out. A test revokes it."""

    def __init__(self, status, code, message):
        self._refusal = httpx.Response(status, json={"code": code, "message": message})
        self._watched = {"result": {"events": [{"kv": {"key": "eA==", "mod_revision": "8"}}]}}
        self.logins = self.valid = 0

    def __call__(self, request):
        if request.url.path == "/v3/auth/authenticate":
            assert json.loads(request.content) == {"name": "u", "password": "p"}
            self.logins += 1
            self.valid = max(self.valid, self.logins)
            return httpx.Response(200, json={"token": str(self.logins)})
        if request.headers["Authorization"] != str(self.valid):
            return httpx.Response(self._refusal.status_code, content=self._refusal.content)
        return httpx.Response(200, json=self._watched if request.url.path == "/v3/watch" else EMPTY)


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_token_that_is_refused_is_renewed(refusal):
    etcd = GuardedEtcd(*refusal)
    store = client(etcd, "etcd://u:p@a")
    assert store.entries("x").revision == 7
    etcd.valid += 1
    assert store.entries("x").revision == 7
    etcd.valid += 1
    assert [change.revision for change in store.changes("x", after=7, timeout_s=1)] == [8]
    assert etcd.logins == 3
    store.close()


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_new_token_that_is_refused_as_well_is_not_renewed_for_ever(refusal):
    etcd = GuardedEtcd(*refusal)
    etcd.valid = 1_000
    store = client(etcd, "etcd://u:p@a")
    with pytest.raises(UsageError, match="etcd refused /v3/kv/range"):
        store.get("x")
    assert etcd.logins == 2
    etcd.valid = 0
    assert store.entries("x").revision == 7
    store.close()


def test_a_watch_that_ends_for_its_token_begins_again_with_another():
    tokens, used = iter(["old", "new"]), []

    def answer(request):
        if request.url.path == "/v3/auth/authenticate":
            return httpx.Response(200, json={"token": next(tokens)})
        used.append(request.headers["Authorization"])
        ended = {"canceled": True, "cancel_reason": "etcdserver: invalid auth token"}
        return httpx.Response(200, json={"result": ended if used == ["old"] else {"events": []}})

    store = client(answer, "etcd://u:p@a")
    with pytest.raises(Unavailable, match="invalid auth token"):
        store.changes("x", after=7, timeout_s=1)
    assert store.changes("x", after=7, timeout_s=1) == ()
    assert used == ["old", "new"]
    store.close()


def test_what_every_member_would_refuse_is_not_tried_again():
    asked = []

    def answer(request):
        asked.append(request.url.host)
        return httpx.Response(400, json={"code": 3, "message": "etcdserver: permission denied"})

    store = client(answer)
    with pytest.raises(UsageError, match="permission denied"):
        store.get("x")
    assert asked == ["a"]
    store.close()
