"""A key-value store in etcd, over the JSON gateway of its version 3 API.

See https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/. Keys and values are base64.
64-bit numbers are text.
"""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import threading
import time
from collections.abc import Iterator, Sequence

import httpx

from pulsetrain.core.errors import PulsetrainError, Unavailable, UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.kv.address import EtcdAddress
from pulsetrain.kv.store import Change, Committed, Compacted, Compare, Entry, Listing, Of, Write

TIMEOUT_S = 1.0  # for each member: a lease of 3 s survives two members that do not answer
AWAY = (8, 14)  # codes of gRPC: resource exhausted, unavailable
UNAUTHENTICATED = 16
OLD_TOKEN = (3, 7)
"""Invalid argument and permission denied, where the text is about auth: as of a JWT of an older revision."""


class EtcdStore:
    """Asks the member that answered last, then the others in turn.

    A transaction that a member did not answer is sent to the next one, so its conditions must allow that it
    is carried out twice. `prefix` is put before every key.
    """

    def __init__(
        self, address: EtcdAddress, *, prefix: str = "", transport: httpx.BaseTransport | None = None
    ) -> None:
        self._address, self._prefix = address, prefix
        self._client = httpx.Client(
            timeout=TIMEOUT_S, transport=transport, verify=_verify(address), trust_env=False
        )
        self._first = 0
        self._token = ""
        self._login = threading.Lock()

    def get(self, key: str) -> Entry | None:
        """See `Entries.get`."""
        answer = self._post("/v3/kv/range", {"key": self._key(key)})
        return next(iter(self._decoded(answer)), None)

    def entries(self, prefix: str) -> Listing:
        """See `Entries.entries`."""
        answer = self._post("/v3/kv/range", self._range(prefix))
        return Listing(entries=tuple(self._decoded(answer)), revision=_revision(answer))

    def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Committed:
        """See `Entries.commit`. A lease that has ended counts as a condition that does not hold."""
        body = {
            "compare": [self._compare(compare) for compare in compares],
            "success": [self._operation(write) for write in writes],
        }
        try:
            answer = self._post("/v3/kv/txn", body)
        except LeaseEnded:
            return Committed(ok=False, revision=0)
        return Committed(ok=bool(answer.get("succeeded")), revision=_revision(answer))

    def changes(self, prefix: str, *, after: int, timeout_s: float) -> tuple[Change, ...]:
        """See `Watch.changes`."""
        until_s = time.monotonic() + timeout_s
        request = {"create_request": {**self._range(prefix), "start_revision": str(after + 1)}}
        try:
            with self._stream("/v3/watch", request, timeout_s) as lines:
                for line in lines:
                    found = self._changes(_result(line), after)
                    if found or time.monotonic() >= until_s:
                        return found
        except httpx.ReadTimeout:
            return ()
        except httpx.TransportError as error:
            raise self._unavailable(error) from error
        return ()

    def grant(self, ttl_s: int) -> int:
        """See `Leases.grant`. etcd makes it longer where it is shorter than its own election."""
        return int(self._post("/v3/lease/grant", {"TTL": str(ttl_s)})["ID"])

    def keep_alive(self, lease: int) -> float:
        """See `Leases.keep_alive`."""
        return float(self._post("/v3/lease/keepalive", {"ID": str(lease)}).get("TTL", 0))

    def revoke(self, lease: int) -> None:
        """See `Leases.revoke`."""
        with contextlib.suppress(LeaseEnded):
            self._post("/v3/lease/revoke", {"ID": str(lease)})

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    # -- requests -----------------------------------------------------------------------------------------

    def _post(self, path: str, body: JsonObject) -> JsonObject:
        """The answer of the first member that gives one."""
        last: Exception | None = None
        for endpoint in self._endpoints():
            try:
                answer = _answer(self._ask(endpoint, path, body, httpx.Timeout(TIMEOUT_S)))
            except (httpx.TransportError, MemberAway) as error:
                last = error
                continue
            self._first = self._address.endpoints.index(endpoint)
            return answer
        raise self._unavailable(last)

    @contextlib.contextmanager
    def _stream(self, path: str, body: JsonObject, timeout_s: float) -> Iterator[Iterator[str]]:
        """The lines of an answer that goes on, from the first member that begins one."""
        last: Exception | None = None
        timeout = httpx.Timeout(TIMEOUT_S, read=max(timeout_s, 0.01))
        for endpoint in self._endpoints():
            try:
                response = self._ask(endpoint, path, body, timeout, stream=True)
            except httpx.ReadTimeout:
                raise
            except (httpx.TransportError, MemberAway) as error:
                last = error
                continue
            try:
                if response.status_code != httpx.codes.OK:
                    _answer(response)
                self._first = self._address.endpoints.index(endpoint)
                yield response.iter_lines()
            finally:
                response.close()
            return
        raise self._unavailable(last)

    def _ask(
        self, endpoint: str, path: str, body: JsonObject, timeout: httpx.Timeout, *, stream: bool = False
    ) -> httpx.Response:
        """The response of one member. Where it refuses the token, that of a second try with a new one."""
        response = self._try(endpoint, path, body, timeout, stream=stream)
        if self._address.user and refuses_token(response):
            response = self._try(endpoint, path, body, timeout, stream=stream)
        return response

    def _try(
        self, endpoint: str, path: str, body: JsonObject, timeout: httpx.Timeout, *, stream: bool
    ) -> httpx.Response:
        """The response of one member. A token that it refuses is dropped. Only the body of a stream that
        begins is not read yet."""
        headers = self._headers(endpoint)
        request = self._client.build_request(
            "POST", endpoint + path, json=body, headers=headers, timeout=timeout
        )
        response = self._client.send(request, stream=stream)
        if response.status_code != httpx.codes.OK:
            response.read()
            if refuses_token(response):
                self._drop(headers.get("Authorization", ""))
        return response

    def _drop(self, token: str) -> None:
        """Log in again before the next request, unless another thread has done so."""
        with self._login:
            if self._token == token:
                self._token = ""

    def _endpoints(self) -> list[str]:
        endpoints, first = self._address.endpoints, self._first
        return [*endpoints[first:], *endpoints[:first]]

    def _headers(self, endpoint: str) -> dict[str, str]:
        if not self._address.user:
            return {}
        with self._login:
            if not self._token:
                body = {"name": self._address.user, "password": self._address.password}
                response = self._client.post(f"{endpoint}/v3/auth/authenticate", json=body)
                self._token = str(_answer(response)["token"])
            return {"Authorization": self._token}

    def _unavailable(self, error: Exception | None) -> Unavailable:
        return Unavailable(f"etcd {self._address}: {error or 'no member answers'}")

    # -- the gateway's JSON -------------------------------------------------------------------------------

    def _key(self, key: str) -> str:
        return _base64(self._prefix + key)

    def _range(self, prefix: str) -> JsonObject:
        """Every key with `prefix`: up to the key that ends with the next byte."""
        first = (self._prefix + prefix).encode()
        trimmed = first.rstrip(b"\xff")
        end = trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else b"\0"
        return {"key": _base64_bytes(first or b"\0"), "range_end": _base64_bytes(end)}

    def _compare(self, compare: Compare) -> JsonObject:
        target, field = ("CREATE", "create_revision") if compare.of is Of.CREATED else ("MOD", "mod_revision")
        return {
            "key": self._key(compare.key),
            "target": target,
            "result": "EQUAL",
            field: str(compare.revision),
        }

    def _operation(self, write: Write) -> JsonObject:
        if write.value is None:
            return {"request_delete_range": {"key": self._key(write.key)}}
        put = {"key": self._key(write.key), "value": _base64(write.value), "lease": str(write.lease)}
        return {"request_put": put}

    def _decoded(self, answer: JsonObject) -> Iterator[Entry]:
        for kv in answer.get("kvs", ()):
            yield Entry(
                key=self._own(kv),
                value=_text(kv.get("value", "")),
                created=int(kv["create_revision"]),
                modified=int(kv["mod_revision"]),
                lease=int(kv.get("lease", 0)),
            )

    def _changes(self, result: JsonObject, after: int) -> tuple[Change, ...]:
        if int(result.get("compact_revision", 0)):
            raise Compacted(f"changes after revision {after} are compacted away in etcd {self._address}")
        if result.get("canceled"):
            if "auth" in str(result.get("cancel_reason", "")):
                self._drop(self._token)
            raise self._unavailable(RuntimeError(str(result.get("cancel_reason", "watch cancelled"))))
        return tuple(
            Change(
                key=self._own(event["kv"]),
                value=None if event.get("type") == "DELETE" else _text(event["kv"].get("value", "")),
                revision=int(event["kv"]["mod_revision"]),
            )
            for event in result.get("events", ())
        )

    def _own(self, kv: JsonObject) -> str:
        return _text(kv["key"]).removeprefix(self._prefix)


class MemberAway(Unavailable):
    """This member cannot answer now: another one may."""


class LeaseEnded(PulsetrainError):
    """The lease of a request does not exist."""


def _verify(address: EtcdAddress) -> ssl.SSLContext | bool:
    if not address.endpoints[0].startswith("https:"):
        return True
    try:
        context = ssl.create_default_context(cafile=address.ca or None)
        if address.cert:
            context.load_cert_chain(address.cert, address.key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"--kv {address}: certificate files: {error}") from error
    return context


def _code(response: httpx.Response) -> int:
    """gRPC's code in the answer, 0 for success."""
    if response.status_code == httpx.codes.OK:
        return 0
    try:
        return int(response.json().get("code", -1))
    except (ValueError, AttributeError):
        return -1


def refuses_token(response: httpx.Response) -> bool:
    """Whether a new token may help. A stream that begins has accepted it."""
    code = _code(response)
    return code == UNAUTHENTICATED or (code in OLD_TOKEN and "auth" in response.text)


def _answer(response: httpx.Response) -> JsonObject:
    """The JSON object of an answer. That of a stream is its first result.

    Raises `MemberAway`, `LeaseEnded`, or `UsageError` for what another member would refuse as well.
    """
    code = _code(response)
    if code == 0:
        return _result(response.text.partition("\n")[0])
    message = response.text[:200].strip()
    if "lease not found" in message:
        raise LeaseEnded(message)
    if code in AWAY or code < 0 or response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
        raise MemberAway(f"{response.request.url.netloc.decode()}: {response.status_code} {message}")
    raise UsageError(f"etcd refused {response.request.url.path}: {message}")


def _result(line: str) -> JsonObject:
    try:
        answer = json.loads(line)
    except ValueError as error:
        raise MemberAway(f"answer is not JSON: {line[:80]!r}") from error
    if not isinstance(answer, dict):
        raise MemberAway(f"answer is not a JSON object: {line[:80]!r}")
    if "error" in answer and "result" not in answer:
        raise MemberAway(str(answer["error"])[:200])
    result = answer.get("result", answer)
    return result if isinstance(result, dict) else {}


def _revision(answer: JsonObject) -> int:
    return int(answer.get("header", {}).get("revision", 0))


def _base64(text: str) -> str:
    return _base64_bytes(text.encode())


def _base64_bytes(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode()
