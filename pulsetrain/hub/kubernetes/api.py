"""A thin client of the Kubernetes API: objects are JSON as the API has them."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import httpx

from pulsetrain.core.errors import PulsetrainError, Unavailable, UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.hub.kubernetes.errors import Conflict, Expired, NotFound, Throttled, error_of
from pulsetrain.hub.kubernetes.objects import PODS, Resource, version_of
from pulsetrain.protocol.kubernetes_access import ApiAccess

TIMEOUT_S = 10.0
LARGEST = 64 << 20  # bytes of one answer, or of one line of a watch
PAGE = 500
TRIES = 6  # of a request that is throttled, and of a change that conflicts
LONGEST_WAIT_S = 10.0
MERGE = "application/merge-patch+json"
BOOKMARK, DELETED = "BOOKMARK", "DELETED"

Change = Callable[[JsonObject], JsonObject | None]
"""Makes a merge patch of an object, None where nothing is to be changed."""


@dataclass(frozen=True, kw_only=True)
class WatchEvent:
    """What happened to an object: ADDED, MODIFIED, DELETED. A BOOKMARK only tells a newer version."""

    type: str
    item: JsonObject


@dataclass(frozen=True, kw_only=True)
class ObjectList:
    """Objects, and the version from which on a watch tells what changes."""

    items: tuple[JsonObject, ...]
    version: str


class KubernetesApi:
    """One cluster. The methods block and may be called from any thread.

    They raise `PulsetrainError` with one line: `NotFound`, `Conflict`, `Expired`, `Throttled`, `AuthError`,
    `UsageError` for what the API will never take, `Unavailable` where it does not answer.
    """

    def __init__(
        self,
        access: ApiAccess,
        *,
        timeout_s: float = TIMEOUT_S,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._access, self._timeout_s, self._transport, self._sleep = access, timeout_s, transport, sleep
        self._lock = threading.Lock()
        self._ca: tuple[int, int] | None = None
        self._client: httpx.Client | None = None
        self._retired: httpx.Client | None = None  # requests of before a new CA may still run

    @property
    def namespace(self) -> str:
        """The namespace that is ours."""
        return self._access.namespace

    def get(self, resource: Resource, name: str) -> JsonObject | None:
        """One object, None where it does not exist."""
        try:
            return self._ask("GET", resource.path(self.namespace, name))
        except NotFound:
            return None

    def list(self, resource: Resource, *, labels: str = "", fields: str = "") -> ObjectList:
        """All objects that the selectors match, in pages. A list that expires in between begins anew."""
        for _ in range(TRIES):
            items: list[JsonObject] = []
            query = {"limit": str(PAGE), "labelSelector": labels, "fieldSelector": fields}
            try:
                while True:
                    page = self._ask("GET", resource.path(self.namespace), query=query)
                    items += page.get("items") or ()
                    if not page["metadata"].get("continue"):
                        return ObjectList(items=tuple(items), version=version_of(page))
                    query["continue"] = page["metadata"]["continue"]
            except Expired:
                continue
        raise Unavailable(f"the list of {resource.plural} expired {TRIES} times while it was read")

    def create(self, resource: Resource, item: JsonObject) -> JsonObject:
        """A new object. Raises `Conflict` where one of that name exists."""
        return self._ask("POST", resource.path(self.namespace), item)

    def replace(self, resource: Resource, name: str, item: JsonObject) -> JsonObject:
        """Write a whole object. With its `resourceVersion`, raises `Conflict` where it has changed since."""
        return self._ask("PUT", resource.path(self.namespace, name), item)

    def patch(self, resource: Resource, name: str, patch: JsonObject, subresource: str = "") -> JsonObject:
        """Merge `patch` into an object. Lists are replaced as a whole, None removes a key."""
        path = resource.path(self.namespace, name, subresource)
        return self._ask("PATCH", path, patch, content_type=MERGE)

    def change(self, resource: Resource, name: str, change: Change) -> bool:
        """Read, change, and write if nobody wrote in between, else once more. Returns whether it was written.

        Raises `NotFound`, and `Conflict` where somebody else wrote each time.
        """
        for again in range(TRIES):
            item = self._ask("GET", resource.path(self.namespace, name))
            patch = change(item)
            if patch is None:
                return False
            metadata = {**patch.get("metadata", {}), "resourceVersion": version_of(item)}
            try:
                self.patch(resource, name, {**patch, "metadata": metadata})
            except Conflict:
                if again == TRIES - 1:
                    raise
                self._sleep(0.05 * 2**again)
            else:
                return True
        raise AssertionError

    def delete(self, resource: Resource, name: str, *, version: str = "") -> bool:
        """Delete an object. Returns whether there was one. With `version`, raises `Conflict` where it has
        changed since."""
        body: JsonObject = {"propagationPolicy": "Background"}
        if version:
            body["preconditions"] = {"resourceVersion": version}
        try:
            self._ask("DELETE", resource.path(self.namespace, name), body)
        except NotFound:
            return False
        return True

    def evict(self, pod: str) -> None:
        """Ask once that a pod ends. Raises `Throttled` where a PodDisruptionBudget does not allow it now."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": self.namespace},
        }
        self._once("POST", PODS.path(self.namespace, pod, "eviction"), body)

    def watch(
        self, resource: Resource, version: str, *, labels: str = "", fields: str = "", timeout_s: float
    ) -> Iterator[WatchEvent]:
        """What happens after `version`, until the API or `timeout_s` ends it. Raises `Expired` for a version
        that is too old."""
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(max(1, round(timeout_s))),
            "labelSelector": labels,
            "fieldSelector": fields,
        }
        path, asked = resource.path(self.namespace), f"watch of {resource.plural}"
        timeout = httpx.Timeout(self._timeout_s, read=timeout_s + self._timeout_s)
        try:
            with self._stream("GET", path, query=query, timeout=timeout) as response:
                if response.status_code != httpx.codes.OK:
                    raise _error(response, _body(response), asked)
                for line in _lines(response.iter_bytes()):
                    yield _event(line, asked)
        except httpx.HTTPError as error:
            raise Unavailable(f"{asked}: {_why(error)}") from error

    def close(self) -> None:
        """Close the connections."""
        for client in (self._client, self._retired):
            if client is not None:
                client.close()

    # -- requests -----------------------------------------------------------------------------------------

    def _ask(
        self,
        method: str,
        path: str,
        body: JsonObject | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> JsonObject:
        """The answer. A throttled request is tried again after what the API asks for."""
        for again in range(TRIES):
            try:
                return self._once(method, path, body, query=query, content_type=content_type)
            except Throttled as error:
                if again == TRIES - 1:
                    raise
                self._sleep(min(error.retry_after_s or 0.2 * 2**again, LONGEST_WAIT_S))
        raise AssertionError

    def _once(
        self,
        method: str,
        path: str,
        body: JsonObject | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> JsonObject:
        asked = f"{method} {path.removeprefix('/apis/').removeprefix('/api/')}"
        content = None if body is None else json.dumps(body).encode()
        try:
            with self._stream(method, path, query=query, content=content, type=content_type) as response:
                text = _body(response)
        except httpx.HTTPError as error:
            raise Unavailable(f"Kubernetes {self._access.url}: {asked}: {_why(error)}") from error
        if response.is_success:
            return _parsed(text, asked)
        raise _error(response, text, asked)

    def _stream(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        content: bytes | None = None,
        type: str = "application/json",
        timeout: httpx.Timeout | None = None,
    ) -> contextlib.AbstractContextManager[httpx.Response]:
        headers = {"Accept": "application/json", "User-Agent": "pulsetrain"}
        token = self._access.token()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if content is not None:
            headers["Content-Type"] = type
        return self._http().stream(
            method,
            self._access.url + path,
            params={name: value for name, value in (query or {}).items() if value},
            content=content,
            headers=headers,
            timeout=timeout or self._timeout_s,
        )

    def _http(self) -> httpx.Client:
        """The client, made anew where the file of the CA has changed. Requests that run keep theirs."""
        path = self._access.ca_file
        with self._lock:
            try:
                state = path.stat() if path is not None else None
                ca = (state.st_mtime_ns, state.st_ino) if state is not None else None
                if self._client is None or ca != self._ca:
                    verify = ssl.create_default_context(cafile=path) if path is not None else True
                    client = httpx.Client(verify=verify, transport=self._transport, trust_env=False)
                    if self._retired is not None:
                        self._retired.close()
                    self._retired, self._client, self._ca = self._client, client, ca
            except OSError as error:
                raise UsageError(f"{path}: {error.strerror or 'no certificate'}") from error
            return self._client


def _body(response: httpx.Response) -> bytes:
    """The whole answer. Raises `Unavailable` for one that is too large to be right."""
    parts, size = [], 0
    for part in response.iter_bytes():
        size += len(part)
        if size > LARGEST:
            raise Unavailable(f"{response.request.url.path}: the answer is larger than {LARGEST >> 20} MiB")
        parts.append(part)
    return b"".join(parts)


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Lines, none of them longer than `LARGEST`."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line for line in whole if line.strip())
        if len(rest) > LARGEST:
            raise Unavailable(f"a line of a watch is longer than {LARGEST >> 20} MiB")


def _event(line: bytes, asked: str) -> WatchEvent:
    event = _parsed(line, asked)
    item = event.get("object")
    if not isinstance(item, dict):
        raise Unavailable(f"{asked}: an event without an object")
    if event.get("type") == "ERROR":
        raise error_of(int(item.get("code", 500)), item, {}, asked)
    return WatchEvent(type=str(event.get("type")), item=item)


def _parsed(text: bytes, asked: str) -> JsonObject:
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unavailable(f"{asked}: the answer is no JSON") from error
    if not isinstance(answer, dict):
        raise Unavailable(f"{asked}: the answer is no JSON object")
    return answer


def _error(response: httpx.Response, text: bytes, asked: str) -> PulsetrainError:
    try:
        status = _parsed(text, asked)
    except Unavailable:
        status = {}
    return error_of(response.status_code, status, response.headers, asked)


def _why(error: httpx.HTTPError) -> str:
    return str(error) or type(error).__name__
