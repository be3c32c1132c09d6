"""The emulator over HTTP, as far as a thin client and kubectl's `get`, `create` and `delete` need it."""

import contextlib
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from tests.hub.kubernetes.emulator import CLUSTER_WIDE, GROUPS, KINDS, WITH_STATUS, Emulator, Refused

PATH = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+/[^/]+))(?:/namespaces/(?P<namespace>[^/]+))?/(?P<kind>[a-z]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<part>[a-z]+))?"
)
BOOKMARK_S = 0.5


class ApiServer:
    """`url` is where it listens. `requests` are all that came: method, path and body. Where `fails` gives a
    `Refused` for a method and a path, that is the answer. `page` bounds what one page of a list holds."""

    def __init__(self, emulator=None, token="", context=None):
        self.emulator, self.token = emulator or Emulator(), token
        self.requests, self.fails, self.page = [], lambda method, path: None, 10_000
        self.watches = 0
        api = self

        class Handler(_Handler):
            server_api = api

        self._server = _Server(("127.0.0.1", 0), Handler)
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "https" if context is not None else "http"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self.ended = threading.Event()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        with self.emulator.changed:
            self.emulator.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """A client that has gone is no error."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def log_message(self, *_):
        pass

    def do_GET(self):
        self._answer()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def _answer(self):
        parts = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        api = self.server_api
        api.requests.append((self.command, parts.path, body))
        try:
            self._refuse(parts.path)
            found = PATH.fullmatch(parts.path)
            if found is None or found["kind"] not in KINDS:
                self._send(200, discovery(parts.path))
            elif query.get("watch") in ("1", "true"):
                self._watch(found["kind"], found["namespace"] or "", query)
            else:
                code = 201 if self.command == "POST" else 200
                self._send(code, self._do(found, body, query))
        except Refused as error:
            self._send(error.code, error.status, error.details.get("retryAfterSeconds"))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _refuse(self, path):
        if self.server_api.token and self.headers.get("Authorization") != f"Bearer {self.server_api.token}":
            raise Refused(401, "Unauthorized", "Unauthorized")
        failure = self.server_api.fails(self.command, path)
        if failure is not None:
            raise failure

    def _do(self, found, body, query):
        emulator = self.server_api.emulator
        kind, name, part = found["kind"], found["name"], found["part"]
        namespace = "" if kind in CLUSTER_WIDE else found["namespace"]
        if part == "eviction":
            assert body["kind"] == "Eviction"
            return emulator.evict(namespace, name)
        if self.command == "GET":
            return emulator.get(kind, namespace, name) if name else self._list(kind, namespace, query)
        if self.command == "POST":
            return emulator.create(kind, namespace, body)
        if self.command == "PUT":
            return emulator.replace(kind, namespace, name, body, status=part == "status")
        if self.command == "PATCH":
            sent = self.headers.get("Content-Type")
            if sent != "application/merge-patch+json":
                raise Refused(415, "UnsupportedMediaType", f"the body of the request was in {sent}")
            return emulator.patch(kind, namespace, name, body, status=part == "status")
        return emulator.delete(kind, namespace, name, body)

    def _list(self, kind, namespace, query):
        api = self.server_api
        with api.emulator.changed:
            items = [i for i in api.emulator.all(kind, namespace or None) if selected(i, query)]
            version = api.emulator.version
        first, seen = map(int, query.get("continue", f"0.{version}").split("."))
        if seen < api.emulator.forgotten:
            raise Refused(410, "Expired", "The provided continue parameter is too old")
        size = min(api.page, int(query.get("limit") or api.page))
        metadata = {"resourceVersion": str(seen)}
        if first + size < len(items):
            metadata["continue"] = f"{first + size}.{seen}"
        return {
            "kind": f"{KINDS[kind]}List", "apiVersion": GROUPS.get(kind, "v1"), "metadata": metadata,
            "items": items[first : first + size],
        }  # fmt: skip

    def _watch(self, kind, namespace, query):
        api, emulator = self.server_api, self.server_api.emulator
        api.watches += 1
        until = time.monotonic() + float(query.get("timeoutSeconds", 60))
        after = int(query.get("resourceVersion") or emulator.version)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while time.monotonic() < until and not api.ended.is_set():
            with emulator.changed:
                if after < emulator.forgotten:
                    gone = Refused(410, "Expired", f"too old resource version: {after}")
                    self._chunk({"type": "ERROR", "object": gone.status})
                    break
                news = [e for e in emulator.events if e.version > after]
                seen = emulator.version
                if not news:
                    emulator.changed.wait(min(BOOKMARK_S, max(0.01, until - time.monotonic())))
            for event in news:
                if event.kind == kind and namespace in ("", event.namespace) and selected(event.item, query):
                    self._chunk({"type": event.type, "object": event.item})
                after = event.version
            if not news and seen == emulator.version and query.get("allowWatchBookmarks"):
                head = {"kind": KINDS[kind], "apiVersion": GROUPS.get(kind, "v1")}
                after = max(after, seen)
                bookmark = {**head, "metadata": {"resourceVersion": str(after)}}
                self._chunk({"type": "BOOKMARK", "object": bookmark})
        with contextlib.suppress(OSError):
            self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, event):
        line = json.dumps(event).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.flush()

    def _send(self, code, item, retry_after=None):
        text = json.dumps(item).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        if retry_after is not None:
            self.send_header("Retry-After", str(retry_after))
        self.end_headers()
        self.wfile.write(text)


def selected(item, query):
    """Whether label and field selectors match, in their forms ``a=b`` and ``a``."""
    labels = item["metadata"].get("labels") or {}
    for term in filter(None, query.get("labelSelector", "").split(",")):
        name, equals, value = term.partition("=")
        if name not in labels or (equals and labels[name] != value):
            return False
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        path, _, value = term.partition("=")
        place = item
        for step in path.split("."):
            place = place.get(step, {}) if isinstance(place, dict) else {}
        if place != value:
            return False
    return True


def discovery(path):
    """What kubectl asks for before it asks for anything else."""
    groups = sorted(set(GROUPS.values()))
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if path == "/apis":
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group(g) for g in groups]}
    asked = path.removeprefix("/apis/").removeprefix("/api/")
    if asked not in {"v1", *groups}:
        raise Refused(404, "NotFound", f"the server could not find the requested resource {path}")
    resources = [resource(kind) for kind in KINDS if GROUPS.get(kind, "v1") == asked]
    more = [r | {"name": f"{r['name']}/status"} for r in resources if r["name"] in WITH_STATUS]
    return {
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": asked, "resources": resources + more,
    }  # fmt: skip


def group(version):
    known = {"groupVersion": version, "version": version.partition("/")[2]}
    return {"name": version.partition("/")[0], "versions": [known], "preferredVersion": known}


def resource(kind):
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    return {
        "name": kind, "singularName": KINDS[kind].lower(), "namespaced": kind not in CLUSTER_WIDE,
        "kind": KINDS[kind], "verbs": verbs, "shortNames": [],
    }  # fmt: skip
