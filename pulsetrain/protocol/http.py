"""HTTP requests to a hub, over connections that stay open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import urllib3
from urllib3.exceptions import HTTPError, ProtocolError

from pulsetrain.core.errors import AuthError, PulsetrainError, Unavailable, UsageError
from pulsetrain.protocol import tls

_CONNECTIONS = 4  # kept open; a further request at the same time opens one of its own


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What the hub answered."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode(errors="replace")


class HubHttp:
    """Requests to the hub at `url` with its token. Safe to use from several threads.

    Proxies that the environment names are not used, because a hub is a machine of the cluster. Redirects are
    not followed. Raises `UsageError` for an address that is none. `ca`: the file of the CA that a certificate
    must be by, "" for those that the system knows.
    """

    def __init__(
        self, url: str, token: str, *, timeout_s: float, connect_s: float | None = None, ca: str = ""
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"hub address {url!r}: allowed is http(s)://host:port")
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"}
        timeout = urllib3.Timeout(connect=connect_s or timeout_s, read=timeout_s)
        try:
            parts = urllib3.util.parse_url(self.url)
            if not parts.host:
                raise UsageError(f"hub address {url!r}: it names no host")
            self._prefix = parts.path or ""
            if parts.scheme == "https":
                self._pool: urllib3.HTTPConnectionPool = urllib3.HTTPSConnectionPool(
                    parts.host,
                    parts.port,
                    timeout=timeout,
                    maxsize=_CONNECTIONS,
                    ssl_context=tls.client_context(ca),
                )
            else:
                self._pool = urllib3.HTTPConnectionPool(
                    parts.host, parts.port, timeout=timeout, maxsize=_CONNECTIONS
                )
        except HTTPError as error:
            raise UsageError(f"hub address {url!r}: {error}") from error

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Send one request and read its answer, whatever its status.

        Raises `Unavailable`, and `AuthError` for a certificate that is not good.
        """
        try:
            return self._send(method, path, body, headers)
        except ProtocolError as error:
            if method != "GET":
                raise self._unavailable(error) from error
        except (HTTPError, OSError) as error:
            raise self._unavailable(error) from error
        try:  # the hub closed an idle connection just when it was used: a question may be asked again
            return self._send(method, path, body, headers)
        except (HTTPError, OSError) as error:
            raise self._unavailable(error) from error

    def _send(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str] | None) -> Reply:
        answer = self._pool.urlopen(
            method,
            self._prefix + path,
            body=body,
            headers={**self._headers, **(headers or {})},
            retries=False,
            redirect=False,
        )
        return Reply(status=answer.status, body=answer.data)

    def _unavailable(self, error: Exception) -> PulsetrainError:
        why = tls.refusal(error)
        if why:
            return AuthError(f"hub {self.url}: {why}")
        hint = "; if it speaks TLS, its address begins with https://" if self._may_speak_tls(error) else ""
        return Unavailable(f"hub {self.url} does not answer: {_reason(error)}{hint}")

    def _may_speak_tls(self, error: Exception) -> bool:
        return isinstance(error, ProtocolError) and self.url.startswith("http:")

    def close(self) -> None:
        """Let connections go. Idempotent."""
        self._pool.close()


def _reason(error: Exception) -> str:
    """The last part of the error's message; what is before it names the library's own objects."""
    return str(error).rpartition(": ")[2].strip() or type(error).__name__
