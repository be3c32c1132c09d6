"""A client says in one line what is wrong with the certificate of a hub. All handshakes are real."""

import asyncio
import ssl

import pytest

from pulsetrain.agent.hub_connection import HubConnection
from pulsetrain.core.errors import AuthError, Unavailable, UsageError
from pulsetrain.hub import private_ca
from pulsetrain.protocol import tls
from pulsetrain.protocol.client import HubAddress
from pulsetrain.protocol.http import HubHttp
from tests.protocol.fake_hub import fake_hub
from tests.protocol.tls_server import issued, tls_server


def get(url, ca=""):
    http = HubHttp(url, "t", timeout_s=5.0, ca=str(ca))
    try:
        return http.request("GET", "/").status
    finally:
        http.close()


def connect(url, ca=""):
    hub = HubAddress(url=url, token="t", ca=str(ca))
    asyncio.run(HubConnection.open(hub, lambda connection, message: None))


@pytest.fixture
def good(tmp_path):
    certificate = issued(tmp_path / "ca")
    with tls_server(certificate) as url:
        yield url


def test_a_hub_is_trusted_by_its_ca_alone(good, tmp_path):
    assert get(good, tmp_path / "ca" / "ca.pem") == 200
    issued(tmp_path / "other")
    for ca in ("", tmp_path / "other" / "ca.pem"):
        for reach in (get, connect):
            with pytest.raises(AuthError, match=r"is by a CA that is not known here .*PULSETRAIN_CA$"):
                reach(good, ca)


@pytest.mark.parametrize("reach", [get, connect])
def test_an_expired_certificate_is_said_to_be_expired(tmp_path, reach):
    with (
        tls_server(issued(tmp_path / "ca", ago_days=20)) as url,
        pytest.raises(AuthError, match=rf"{url[8:]}.*: its certificate has expired: issue it anew$"),
    ):
        reach(url, tmp_path / "ca" / "ca.pem")


def test_a_certificate_from_the_future_points_to_the_clocks(tmp_path):
    issued(tmp_path / "ca")
    with (
        tls_server(issued(tmp_path / "ca", ago_days=-5)) as url,
        pytest.raises(AuthError, match="not valid yet: compare the clocks"),
    ):
        get(url, tmp_path / "ca" / "ca.pem")


def test_a_certificate_for_another_host_names_the_host(tmp_path, monkeypatch):
    monkeypatch.setattr(private_ca, "LOOPBACK", ())
    with (
        tls_server(issued(tmp_path / "ca", "elsewhere")) as url,
        pytest.raises(AuthError, match=r"is for another host: .*127\.0\.0\.1"),
    ):
        get(url, tmp_path / "ca" / "ca.pem")


def test_http_and_https_that_are_mixed_up_say_so(good):
    with pytest.raises(Unavailable, match="if it speaks TLS, its address begins with https://"):
        get(good.replace("https", "http"))
    with fake_hub() as hub:
        for reach in (get, connect):
            with pytest.raises(AuthError, match="does not speak TLS: its address begins with http://"):
                reach(hub.url.replace("http", "https"))


def test_a_file_that_is_no_ca_is_one_line(tmp_path):
    (tmp_path / "x").write_text("no PEM")
    with pytest.raises(UsageError, match="x: it holds no certificate in PEM form"):
        tls.client_context(str(tmp_path / "x"))
    with pytest.raises(UsageError, match="none: No such file"):
        tls.client_context(str(tmp_path / "none"))


def test_errors_of_another_kind_are_no_refusal():
    error = OSError("refused")
    error.__cause__ = error  # a circle ends
    assert tls.refusal(error) == ""
    assert tls.refusal(ssl.SSLError("shut down")) == ""
