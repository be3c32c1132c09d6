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


def test_a_token_that_has_expired_is_renewed():
    tokens = iter(["old", "new"])

    def answer(request):
        if request.url.path == "/v3/auth/authenticate":
            assert json.loads(request.content) == {"name": "u", "password": "p"}
            return httpx.Response(200, json={"token": next(tokens)})
        if request.headers["Authorization"] == "old":
            return httpx.Response(401, json={"code": 16, "message": "etcdserver: invalid auth token"})
        return httpx.Response(200, json=EMPTY)

    store = client(answer, "etcd://u:p@a")
    assert store.entries("x").revision == 7
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
