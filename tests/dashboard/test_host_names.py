"""A page of another name cannot use the dashboard, and nobody else notices."""

from __future__ import annotations

import asyncio

import pytest

from pulsetrain.dashboard.host_names import KnownHosts


def answer(host, names="", kind="websocket", scheme="ws", path="/_stcore/stream", headers=()):
    """What the server says first: the application's own message, or a refusal."""
    sent = []

    async def application(scope, receive, send):
        await send({"type": "passed"})

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "websocket.connect"}

    known = KnownHosts(application, names, machine="head.cluster.example")
    headers = [*([(b"host", host.encode())] if host is not None else []), *headers]
    scope = {"type": kind, "scheme": scheme, "path": path, "headers": headers}
    asyncio.run(known(scope, receive, send))
    return sent[0].get("status", sent[0]["type"]), b"".join(m.get("body", b"") for m in sent)


def passes(host, names="", **request):
    return answer(host, names, **request)[0] == "passed"


def test_a_websocket_of_a_name_on_the_internet_is_closed_and_its_page_says_what_to_do():
    assert answer("evil.example:8790")[0] == "websocket.close"
    assert answer("127.0.0.1.evil.example")[0] == "websocket.close"
    status, body = answer("evil.example:8790", kind="http", scheme="http", path="/nodes")
    assert status == 403
    assert b"'evil.example'" in body
    assert b"dashboard_hosts" in body


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:8790",
        "localhost:18790",
        "LOCALHOST",
        "[::1]:8790",
        "10.0.0.5",
        "head:8790",
        "hub.svc.cluster.local",
    ],
)
def test_tunnels_and_names_of_this_machine_pass(host):
    assert passes(host)
    assert passes(host, names="dash.example")
    assert passes("Head.cluster.example.:8790")
    assert passes(None)  # no browser


@pytest.mark.parametrize(
    "header", [b"X-Forwarded-For", b"x-forwarded-proto", b"Forwarded", b"Via", b"X-Real-IP"]
)
def test_a_proxy_passes_until_names_are_given(header):
    assert passes("dash.example", headers=[(header, b"10.0.0.9")])
    assert passes("dash.example", "dash.example", headers=[(header, b"10.0.0.9")])
    assert not passes("evil.example", "dash.example", headers=[(header, b"10.0.0.9")])


def test_with_tls_the_certificate_names_the_hosts():
    assert passes("dash.example", scheme="wss")
    assert not passes("evil.example", "dash.example", scheme="wss")


def test_given_names_may_be_patterns():
    names = " dash.example , *.cluster.example,"
    assert passes("Dash.Example", names)
    assert passes("one.cluster.example:443", names)
    assert not passes("cluster.example.evil.example", names)
    assert passes("any.example", "*")


def test_the_health_of_the_server_is_told_to_anybody():
    assert passes("probe.example", kind="http", scheme="http", path="/_stcore/health")
    assert passes("probe.example", kind="lifespan")
