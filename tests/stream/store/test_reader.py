"""A statement from outside runs with its limits, and a failure keeps ClickHouse's code."""

from __future__ import annotations

import httpx
import pytest

from pulsetrain.core.errors import Unavailable
from pulsetrain.stream.store import reader
from pulsetrain.stream.store.reader import ChdbReader, HttpReader, QueryFailed, ReaderConfig

CONFIG = ReaderConfig(max_seconds=7.0, max_memory_bytes=1 << 20, max_result_bytes=1000)


def http_reader(handler):
    made = HttpReader("http://store:8123", "user", "secret", "db", CONFIG)
    made._http = httpx.Client(
        base_url="http://store:8123", headers=made._http.headers, transport=httpx.MockTransport(handler)
    )
    return made


@pytest.mark.parametrize(
    ("total", "memory", "result"),
    [(None, 4 << 30, 1 << 30), (8 << 30, 1 << 30, 256 << 20), (1 << 40, 4 << 30, 1 << 30)],
)
def test_the_limits_of_a_statement_fit_the_memory(total, memory, result):
    limits = ReaderConfig.of_memory(total)
    assert (limits.max_memory_bytes, limits.max_result_bytes) == (memory, result)


def test_a_statement_goes_to_the_server_read_only_and_limited():
    seen = []

    def handler(request):
        seen.append(request)
        return httpx.Response(200, content=b"1\n")

    result = http_reader(handler).read("SELECT {n:Int32}", {"n": "1"}, "TabSeparated")
    assert result.body == b"1\n"
    (request,) = seen
    assert request.content == b"SELECT {n:Int32}"
    assert (request.headers["x-clickhouse-user"], request.headers["x-clickhouse-key"]) == ("user", "secret")
    assert {
        "readonly": "1", "database": "db", "max_execution_time": "7.0", "max_memory_usage": str(1 << 20),
        "default_format": "TabSeparated", "param_n": "1",
    }.items() <= dict(request.url.params).items()  # fmt: skip


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Code: 60. DB::Exception: Unknown table", 60),
        ("prefix Code: 47. DB::Exception: no such column\n", 47),
        ("502 Bad Gateway", 1002),
    ],
)
def test_what_the_engine_refuses_keeps_its_code(text, code):
    with pytest.raises(QueryFailed) as caught:
        http_reader(lambda _: httpx.Response(500, text=text)).read("SELECT", {}, "Native")
    assert caught.value.code == code
    assert str(caught.value) in text


def test_a_server_that_is_away_is_unavailable():
    def handler(request):
        raise httpx.ConnectError("refused")

    with pytest.raises(Unavailable, match="store http://store:8123 does not answer: refused"):
        http_reader(handler).read("SELECT 1", {}, "Native")


def test_no_more_of_a_result_is_read_than_is_allowed():
    taken = []

    def body():
        for _ in range(100):
            taken.append(300)
            yield b"x" * 300

    with pytest.raises(QueryFailed, match=r"max bytes: 1000\. Select fewer rows") as caught:
        http_reader(lambda _: httpx.Response(200, content=body())).read("SELECT 1", {}, "Native")
    assert caught.value.code == 396
    assert len(taken) < 10
    whole = http_reader(lambda _: httpx.Response(200, content=b"x" * 1000)).read("SELECT 1", {}, "Native")
    assert len(whole.body) == 1000


@pytest.mark.integration
def test_chdb_ends_a_statement_whose_result_is_too_large(tmp_path):
    made = ChdbReader(tmp_path, ReaderConfig(max_result_bytes=100_000))
    assert made.read("SELECT count() FROM numbers(1000000)", {}, "TabSeparated").body == b"1000000\n"
    with pytest.raises(QueryFailed, match="Limit for result exceeded") as caught:
        made.read("SELECT number FROM numbers(1000000)", {}, "TabSeparated")
    assert caught.value.code == 396
    made.close()


class Handle:
    """Stands in for a connection of chDB."""

    def __init__(self):
        self.statements = []
        self.closed = False

    def query(self, sql, default_format="", params=None):
        self.statements.append(sql)
        if "wrong" in sql:
            raise RuntimeError("Code: 62. DB::Exception: Syntax error")
        return self

    def bytes(self):
        return b"x"

    def rows_read(self):
        return 3

    def bytes_read(self):
        return 24

    def elapsed(self):
        return 0.5

    def close(self):
        self.closed = True


@pytest.fixture
def handles(monkeypatch):
    """The connections that a reader opened."""
    opened = []
    monkeypatch.setattr(reader, "_connect", lambda path: opened.append(Handle()) or opened[-1])
    return opened


def test_a_handle_is_opened_once_with_its_limits_and_used_again(handles, tmp_path):
    made = ChdbReader(tmp_path, CONFIG)
    result = made.read("SELECT 1", {}, "Native")
    assert (result.body, result.read_rows, result.read_bytes, result.elapsed_ns) == (b"x", 3, 24, 500_000_000)
    made.read("SELECT 2", {}, "Native")
    (handle,) = handles
    assert handle.statements[1:] == ["SELECT 1", "SELECT 2"]
    assert handle.statements[0] == (
        "SET max_execution_time = 7.0, max_memory_usage = 1048576, "
        "max_result_bytes = 1000, result_overflow_mode = 'throw', readonly = 1"
    )


def test_a_handle_whose_statement_failed_serves_the_next(handles, tmp_path):
    made = ChdbReader(tmp_path, CONFIG)
    with pytest.raises(QueryFailed, match="Syntax error"):
        made.read("SELECT wrong", {}, "Native")
    assert made.read("SELECT 1", {}, "Native").body == b"x"
    assert len(handles) == 1


def test_when_all_handles_are_busy_for_too_long_it_says_so(handles, tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "_WAIT_S", 0.001)
    made = ChdbReader(tmp_path, CONFIG)
    while not made._handles.empty():
        made._handles.get_nowait()
    with pytest.raises(Unavailable, match="4 statements are running; try again"):
        made.read("SELECT 1", {}, "Native")


def test_closing_closes_what_was_opened(handles, tmp_path):
    made = ChdbReader(tmp_path, CONFIG)
    made.read("SELECT 1", {}, "Native")
    made.close()
    made.close()
    assert handles[0].closed
