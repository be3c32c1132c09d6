"""ClickHouse's HTTP protocol over a reader that the test holds. Over a real engine: `test_server.py`."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from types import SimpleNamespace

import httpx
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.routing import Route

from pulsetrain.core.errors import Unavailable
from pulsetrain.stream.store.query_route import MAX_QUERY_BYTES, QueryRoute
from pulsetrain.stream.store.reader import QueryFailed, QueryResult

FORM = "multipart/form-data; boundary=x"


class FakeReader:
    """Answers every statement with `body`, or raises `failure`."""

    def __init__(self):
        self.statements = []
        self.body = b"1\n"
        self.failure = None

    def read(self, sql, params, default_format):
        self.statements.append((sql, dict(params), default_format))
        if self.failure:
            raise self.failure
        return QueryResult(body=self.body, read_rows=3, read_bytes=24, elapsed_ns=7)

    def close(self):
        pass


@pytest.fixture
def reader():
    return FakeReader()


class BlockedReader(FakeReader):
    """Answers once it is told to."""

    def __init__(self):
        super().__init__()
        self.go = threading.Event()

    def read(self, sql, params, default_format):
        self.go.wait(30)
        return super().read(sql, params, default_format)


class Client:
    """Calls the route without a network. The content of a response is as it was sent."""

    def __init__(self, reader, **limits):
        route = QueryRoute(reader, frozenset({"url"}), "secret", **limits)
        self.app = Starlette(routes=[Route("/", route.answer, methods=["GET", "POST"])])

    def get(self, url, **request):
        return asyncio.run(self._send("GET", url, **request))

    def post(self, url, **request):
        return asyncio.run(self._send("POST", url, **request))

    async def _send(self, method, url, *, headers=(), **request):
        headers = {"Authorization": "Bearer secret", "Accept-Encoding": "identity"} | dict(headers)
        transport = httpx.ASGITransport(self.app)
        async with (
            httpx.AsyncClient(transport=transport, base_url="http://hub") as client,
            client.stream(method, url, headers=headers, **request) as response,
        ):
            raw = b"".join([part async for part in response.aiter_raw()])
        return SimpleNamespace(
            status_code=response.status_code, headers=response.headers, content=raw,
            text=raw.decode(errors="replace"),
        )  # fmt: skip


@pytest.fixture
def client(reader):
    return Client(reader)


def test_the_result_comes_with_the_headers_of_clickhouse(client):
    response = client.get("/", params={"query": "SELECT 1", "query_id": "q7"})
    assert (response.status_code, response.content) == (200, b"1\n")
    assert response.headers["X-ClickHouse-Query-Id"] == "q7"
    assert response.headers["X-ClickHouse-Format"] == "TabSeparated"
    assert json.loads(response.headers["X-ClickHouse-Summary"]) == {
        "read_rows": "3", "read_bytes": "24", "elapsed_ns": "7",
    }  # fmt: skip


def test_url_and_body_are_one_statement_with_its_parameters(client, reader):
    client.post("/", params={"query": "SELECT {n:Int32}", "param_n": "5", "max_threads": "9"}, content="+ 1")
    assert reader.statements == [("SELECT {n:Int32}\n+ 1", {"n": "5"}, "TabSeparated")]


@pytest.mark.parametrize(
    ("request_", "output_format"),
    [
        ({"content": "SELECT 1 format Native"}, "Native"),
        ({"content": "SELECT 1", "params": {"default_format": "JSON"}}, "JSON"),
        ({"content": "SELECT 1", "headers": {"X-ClickHouse-Format": "CSV"}}, "CSV"),
        ({"content": "SELECT 1", "params": {"default_format": "x; y"}}, "TabSeparated"),
    ],
)
def test_the_format_is_named_by_statement_url_or_header(client, reader, request_, output_format):
    response = client.post("/", **request_)
    assert reader.statements[0][2] == response.headers["X-ClickHouse-Format"] == output_format


def test_a_compressed_statement_is_read(client, reader):
    client.post("/", content=gzip.compress(b"SELECT 1"), headers={"Content-Encoding": "gzip"})
    assert reader.statements[0][0] == "SELECT 1"


@pytest.mark.parametrize(
    ("body", "encoding", "words"),
    [
        (b"not gzip", "gzip", "body is not gzip"),
        (gzip.compress(b"SELECT 1", mtime=0)[:-9], "gzip", "body is not gzip"),
        (gzip.compress(b" " * (MAX_QUERY_BYTES + 1), mtime=0), "gzip", "larger than"),
        (b" " * (MAX_QUERY_BYTES + 1), "", "larger than"),
        (b"x", "br", "Content-Encoding 'br': allowed is gzip"),
        (b"\xff", "", "not UTF-8"),
        (b"DROP TABLE spans", "", "only SELECT"),
        (b"SELECT * FROM url('http://x')", "", "function url may not run here"),
    ],
)
def test_what_may_not_run_is_refused_and_reaches_no_engine(client, reader, body, encoding, words):
    headers = {"Content-Encoding": encoding} if encoding else {}
    response = client.post("/", content=body, headers=headers)
    assert response.status_code == 403
    assert response.headers["X-ClickHouse-Exception-Code"] == "164"
    assert words in response.text
    assert reader.statements == []


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (QueryFailed("Code: 60. DB::Exception: Unknown table", 60), 404, "60"),
        (QueryFailed("Code: 9999. DB::Exception: new", 9999), 500, "9999"),
        (Unavailable("4 statements are running"), 500, "202"),
    ],
)
def test_a_failure_has_clickhouses_code(client, reader, failure, status, code):
    reader.failure = failure
    response = client.post("/", content="SELECT 1")
    assert (response.status_code, response.headers["X-ClickHouse-Exception-Code"]) == (status, code)
    assert str(failure) in response.text


def test_an_unknown_database_is_named(client):
    response = client.post("/", content="SELECT 1", params={"database": "other"})
    assert (response.status_code, response.headers["X-ClickHouse-Exception-Code"]) == (404, "81")
    assert "Database other does not exist" in response.text


@pytest.mark.parametrize(
    ("enabled", "accepted", "encoding"),
    [("1", "gzip, zstd;q=1", "zstd"), ("1", "gzip", "gzip"), ("1", "br", None), ("0", "gzip", None)],
)
def test_a_result_is_compressed_where_the_client_wants_and_accepts_it(
    client, reader, enabled, accepted, encoding
):
    reader.body = b"x" * 1000
    response = client.post(
        "/", content="SELECT 1", params={"enable_http_compression": enabled},
        headers={"Accept-Encoding": accepted},
    )  # fmt: skip
    raw = response.content
    assert response.headers.get("Content-Encoding") == encoding
    match encoding:
        case "zstd":
            raw = pa.decompress(raw, 1000, codec="zstd", asbytes=True)
        case "gzip":
            raw = gzip.decompress(raw)
    assert raw == reader.body


def test_without_the_token_nothing_is_read(client, reader):
    response = client.post("/", content="SELECT 1", headers={"Authorization": "Bearer wrong"})
    assert (response.status_code, response.headers["X-ClickHouse-Exception-Code"]) == (401, "516")
    assert reader.statements == []


def test_a_get_without_a_statement_says_that_the_server_is_there(client):
    assert client.get("/").text == "Ok.\n"


@pytest.mark.parametrize("name", ["a\r\nX-Evil: 1", "\u0416", "x" * 101, ""])
def test_a_query_id_that_no_header_can_hold_is_replaced(client, name):
    response = client.get("/", params={"query": "SELECT 1", "query_id": name})
    assert (response.status_code, response.content) == (200, b"1\n")
    assert len(response.headers["X-ClickHouse-Query-Id"]) == 36
    assert "X-Evil" not in response.headers


WORDS = st.text(max_size=20) | st.sampled_from(
    ["SELECT 1", "FORMAT \u0416", "SELECT 1 FORMAT \u0416", "gzip"]
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.dictionaries(
        st.sampled_from(["query", "database", "default_format", "query_id", "param_x", "user"]), WORDS
    ),
    st.binary(max_size=60)
    | st.binary(max_size=60).map(gzip.compress)
    | st.just(gzip.compress(bytes(1 << 22))),
    st.sampled_from([{}, {"Content-Encoding": "gzip"}, {"Content-Encoding": "br"}, {"Content-Type": FORM}]),
)
def test_any_request_gets_an_answer(client, params, body, headers):
    response = client.post("/", params=params, content=body, headers=headers)
    assert response.status_code < 500 or response.headers["X-ClickHouse-Exception-Code"]


def test_slow_statements_leave_the_threads_of_ingest_free():
    reader = BlockedReader()
    client = Client(reader)

    async def ask():
        slow = [asyncio.create_task(client._send("GET", "/?query=SELECT 1")) for _ in range(41)]
        await asyncio.sleep(0.05)
        try:
            stored = await asyncio.wait_for(run_in_threadpool(lambda: "stored"), 1.0)
        finally:
            reader.go.set()
        return stored, await asyncio.gather(*slow)

    stored, answers = asyncio.run(ask())
    assert stored == "stored"
    assert {answer.status_code for answer in answers} == {200}


def test_no_statement_runs_while_results_fill_the_memory(reader):
    """A client that reads slowly keeps its result in the hub."""
    client = Client(reader, most_held=len(reader.body))
    scope = {
        "type": "http", "method": "GET", "path": "/", "query_string": b"query=SELECT+1",
        "headers": [(b"authorization", b"Bearer secret")],
    }  # fmt: skip

    async def slow():
        sent, read_on = asyncio.Event(), asyncio.Event()

        async def send(message):
            if message["type"] == "http.response.body":
                sent.set()
                await read_on.wait()

        first = asyncio.create_task(client.app(scope, _no_body, send))
        await sent.wait()
        meanwhile = await client._send("GET", "/?query=SELECT 1")
        read_on.set()
        await first
        return meanwhile, await client._send("GET", "/?query=SELECT 1")

    meanwhile, after = asyncio.run(slow())
    assert meanwhile.headers["X-ClickHouse-Exception-Code"] == "202"
    assert "still being sent" in meanwhile.text
    assert (after.status_code, after.content) == (200, b"1\n")


async def _no_body():
    return {"type": "http.request", "body": b"", "more_body": False}
