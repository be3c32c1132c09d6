from __future__ import annotations

import socket
import threading

import pytest

from pulsetrain.core.errors import Unavailable, UsageError
from pulsetrain.protocol.http import HubHttp
from tests.protocol.fake_hub import fake_hub


@pytest.mark.parametrize("url", ["hub:8780", "ftp://hub", "http://hub:port", "http://", "https://:1"])
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(UsageError, match="hub address"):
        HubHttp(url, "t", timeout_s=1.0)


def test_requests_carry_the_token_and_share_a_connection():
    with fake_hub((200, b"first"), (404, b"second")) as hub:
        http = HubHttp(f"{hub.url}/", "secret", timeout_s=5.0)
        assert http.request("POST", "/v1/x", b"body", {"Content-Type": "text/plain"}).body == b"first"
        reply = http.request("GET", "/v1/y?z=1")
        http.close()
    assert (reply.status, reply.text) == (404, "second")
    assert [(a.method, a.path, a.body) for a in hub.asked] == [
        ("POST", "/v1/x", b"body"),
        ("GET", "/v1/y?z=1", b""),
    ]
    assert {a.headers["Authorization"] for a in hub.asked} == {"Bearer secret"}
    assert hub.asked[0].headers["Content-Type"] == "text/plain"
    assert len(hub.connections) == 1


def test_a_path_in_the_address_is_kept():
    with fake_hub((200, {})) as hub:
        HubHttp(f"{hub.url}/pulsetrain/", "t", timeout_s=5.0).request("GET", "/v1/status")
    assert hub.asked[0].path == "/pulsetrain/v1/status"


def test_a_proxy_of_the_environment_is_not_used(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with fake_hub((200, b"direct")) as hub:
        assert HubHttp(hub.url, "t", timeout_s=5.0).request("GET", "/").body == b"direct"


def test_a_redirect_is_an_answer_like_any_other():
    with fake_hub((302, b"moved")) as hub:
        assert HubHttp(hub.url, "t", timeout_s=5.0).request("GET", "/").status == 302
    assert len(hub.asked) == 1


def test_a_hub_that_is_away_is_one_line_that_names_it():
    with pytest.raises(Unavailable, match=r"^hub http://127\.0\.0\.1:9 does not answer: .*refused$"):
        HubHttp("http://127.0.0.1:9", "t", timeout_s=5.0).request("GET", "/")


def test_a_hub_that_says_nothing_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        http = HubHttp(f"http://127.0.0.1:{silent.getsockname()[1]}", "t", timeout_s=0.05)
        with pytest.raises(Unavailable, match="does not answer: Read timed out"):
            http.request("GET", "/")
        http.close()


def test_a_connection_that_the_hub_closed_in_between_is_opened_again():
    with fake_hub((200, b"once")) as hub:
        http = HubHttp(hub.url, "t", timeout_s=5.0)
        http.request("GET", "/")
        for connection in list(http._pool.pool.queue):
            if connection is not None:
                connection.sock.close()
                connection.sock = None
        assert http.request("GET", "/").body == b"once"
        http.close()


def closes_on_second_request(server):
    """Answer once on the first connection, close it at the next request, answer on the second connection."""
    ok = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    first, _ = server.accept()
    first.recv(4096)
    first.sendall(ok)
    first.recv(4096)
    first.close()
    second, _ = server.accept()
    second.recv(4096)
    second.sendall(ok)
    second.close()


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_question_that_met_the_end_of_an_idle_connection_is_asked_again_and_an_action_is_not(method):
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=closes_on_second_request, args=(server,), daemon=True).start()
        http = HubHttp(f"http://127.0.0.1:{server.getsockname()[1]}", "t", timeout_s=5.0)
        assert http.request("GET", "/").status == 200
        if method == "GET":
            assert http.request("GET", "/").body == b"ok"
        else:
            with pytest.raises(Unavailable, match="does not answer"):
                http.request("POST", "/")
        http.close()
