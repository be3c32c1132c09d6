from __future__ import annotations

import subprocess
import threading

import clickhouse_connect
import httpx
import pyarrow as pa
import pytest
from clickhouse_connect.driver.exceptions import ClickHouseError

from pulsetrain.core.errors import AuthError, PulsetrainError, Unavailable
from pulsetrain.records.batch import encode
from pulsetrain.stream.store.clickhouse import open_store
from tests.stream.conftest import TOKEN
from tests.stream.rows import table

pytestmark = pytest.mark.integration

BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(params=["chdb", "http"])
def either(request, chdb_store):
    """The store opened in process, and through the hub."""
    return chdb_store if request.param == "chdb" else request.getfixturevalue("hub_store")


def post(hub, record, data, headers=BEARER):
    return httpx.post(f"{hub}/v1/records/{record}", timeout=60, content=data, headers=headers)


def count(store, job):
    return store.query("SELECT count() AS n FROM steps WHERE job = {j:String}", {"j": job})["n"][0].as_py()


def connect(hub, **more):
    host, port = hub.removeprefix("http://").split(":")
    return clickhouse_connect.get_client(
        host=host, port=int(port), username="default", password=TOKEN, **more
    )


def test_both_ways_give_the_same_table(chdb_store, either):
    chdb_store.insert("steps", table("steps", 4, job="same", loss=[1.5, None, 2.5, None]), token="same")
    found = either.query(
        "SELECT job, rank, step, start, duration_ns, flops, loss FROM steps WHERE job = {j:String}"
        " AND rank IN {ranks:Array(Int32)} ORDER BY rank",
        {"j": "same", "ranks": [0, 1, 2]},
    )
    assert [str(t) for t in found.schema.types] == [
        "string", "int32", "int64", "timestamp[ns, tz=UTC]", "int64", "double", "double",
    ]  # fmt: skip
    assert found["rank"].to_pylist() == [0, 1, 2]
    assert found["loss"].to_pylist() == [1.5, None, 2.5]


def test_both_ways_give_empty_results_their_columns(either):
    found = either.query("SELECT rank, job FROM steps WHERE job = 'nobody'")
    assert found.column_names == ["rank", "job"]
    assert found.num_rows == 0


def test_both_ways_quote_what_is_bound(either):
    text = 'it\'s \\ "odd"\t\n{x:String} -- ;'
    assert either.query("SELECT {t:String} AS t", {"t": text})["t"].to_pylist() == [text]


def test_both_ways_say_in_one_line_what_is_wrong(either):
    with pytest.raises(PulsetrainError, match="nowhere") as caught:
        either.query("SELECT * FROM nowhere")
    assert "\n" not in str(caught.value)


def test_a_batch_is_stored_when_the_answer_comes_and_only_once(hub, chdb_store):
    data = encode("steps", table("steps", 9, job="posted"), source="n/1", first_row=0)
    first, second = post(hub, "steps", data), post(hub, "steps", data)
    assert (first.status_code, first.json()) == (200, {"stored": 9})
    assert (second.status_code, second.json()) == (200, {"stored": 0})
    assert count(chdb_store, "posted") == 9


def test_two_copies_at_once_are_stored_once(hub, chdb_store):
    data = encode("steps", table("steps", 50, job="twins"), source="n/2", first_row=0)
    threads = [threading.Thread(target=post, args=(hub, "steps", data)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count(chdb_store, "twins") == 50


@pytest.mark.parametrize(
    ("record", "data", "status", "says"),
    [
        ("steps", b"garbage", 422, "not an Arrow IPC stream"),
        ("logs", encode("steps", table("steps", 1), source="n", first_row=0), 422, "steps sent as logs"),
        ("steps", b"x" * ((64 << 20) + 1), 413, "larger than"),
    ],
    ids=["garbage", "other-record", "too-large"],
)  # fmt: skip
def test_a_bad_batch_is_refused_with_its_reason(hub, record, data, status, says):
    answer = post(hub, record, data)
    assert answer.status_code == status
    assert says in answer.json()["error"]


def test_without_the_token_nothing_is_stored_or_read(hub):
    data = encode("steps", table("steps", 1), source="n", first_row=0)
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic !!!"}):
        assert post(hub, "steps", data, headers).status_code == 401
        answer = httpx.get(hub, timeout=60, params={"query": "SELECT 1"}, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["X-ClickHouse-Exception-Code"] == "516"
        assert "AUTHENTICATION_FAILED" in answer.text
    assert httpx.get(f"{hub}/ping", timeout=60).text == "Ok.\n"


def test_a_wrong_token_is_one_clear_line(hub):
    with pytest.raises(AuthError, match="refuses the token"):
        open_store(hub, token="wrong")
    with pytest.raises(ClickHouseError, match="missing or wrong token"):
        clickhouse_connect.get_client(
            host="127.0.0.1", port=int(hub.rsplit(":", 1)[1]), username="u", password="wrong"
        )


def test_nobody_there_is_unavailable():
    with pytest.raises(Unavailable, match="does not answer"):
        open_store("http://127.0.0.1:9", token="x")


@pytest.mark.parametrize(
    "given",
    [
        {"headers": BEARER},
        {"headers": {"X-ClickHouse-User": "u", "X-ClickHouse-Key": TOKEN}},
        {"auth": ("anyone", TOKEN)},
        {"params": {"password": TOKEN}},
    ],
)
def test_the_token_may_come_in_any_way_that_clickhouse_knows(hub, given):
    params = {"query": "SELECT 41 + 1"} | given.pop("params", {})
    assert httpx.get(hub, timeout=60, params=params, **given).text == "42\n"


def test_statements_may_come_in_the_url_the_body_or_both(hub):
    def ask(query, body):
        params = {"query": query} if query else {}
        return httpx.post(
            hub, timeout=60, params=params | {"param_n": "5"}, content=body, headers=BEARER
        ).text

    assert ask("SELECT {n:Int32}", "") == "5\n"
    assert ask("", "SELECT {n:Int32} FORMAT JSONEachRow").startswith('{"')
    assert ask("SELECT {n:Int32}", "+ 1") == "6\n"


def test_curl_can_ask(hub):
    done = subprocess.run(
        ["curl", "-sS", f"{hub}/?password={TOKEN}", "--data-binary", "SELECT 1 AS a FORMAT CSVWithNames"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == '"a"\n1\n'


@pytest.mark.parametrize("compress", [True, False, "zstd", "gzip"])
def test_clickhouse_connect_reads_every_way_it_knows(hub, chdb_store, compress):
    chdb_store.insert("steps", table("steps", 3, job="cc"), token="cc")
    client = connect(hub, compress=compress)
    sql = "SELECT rank, job, start, loss FROM steps WHERE job = {j:String} ORDER BY rank"
    bound = {"j": "cc"}
    assert [r[0] for r in client.query(sql, parameters=bound).result_rows] == [0, 1, 2]
    assert client.query_arrow(sql, parameters=bound).column("job").to_pylist() == ["cc"] * 3
    assert list(client.query_df(sql, parameters=bound)["rank"]) == [0, 1, 2]
    with client.query_row_block_stream(sql, parameters=bound) as stream:
        assert sum(len(block) for block in stream) == 3
    assert client.command("SELECT count() FROM steps WHERE job = 'cc'") == 3
    assert client.query("SELECT * FROM steps LIMIT 0").column_names[0] == "job"
    assert client.query("SELECT job FROM steps WHERE job = 'nobody'").result_rows == []
    assert client.ping()
    client.close()


def test_large_bound_values_come_as_a_form(hub):
    client = connect(hub, form_encode_query_params=True)
    values = list(range(20_000))
    found = client.query("SELECT length({v:Array(Int32)})", parameters={"v": values})
    assert found.result_rows == [(20_000,)]
    client.close()


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO steps (job) VALUES ('x')",
        "DROP TABLE steps",
        "SELECT 1; DROP TABLE steps",
        "ALTER TABLE steps DELETE WHERE 1",
        "SET readonly = 0",
        "SELECT 1 SETTINGS readonly = 0",
        "SELECT * FROM file('/etc/passwd', 'LineAsString')",
        "SELECT file('/etc/passwd')",
        "SELECT arrayMap(file, ['/etc/passwd'])",
        "SELECT * FROM '/etc/passwd'",
        'SELECT * FROM default."/etc/passwd"',
        "SELECT * FROM url('http://127.0.0.1:9/', 'LineAsString')",
        "SELECT * FROM s3('http://127.0.0.1:9/x')",
        "SELECT * FROM remote('127.0.0.1', 'system.one')",
        "SELECT * FROM Python(store)",
        "SELECT * FROM executable('id', 'TSV', 'a String')",
        "DESCRIBE TABLE file('/etc/passwd')",
        "CREATE TABLE x (a Int8) ENGINE = Memory",
        "SYSTEM SHUTDOWN",
        "KILL QUERY WHERE 1",
    ],
)
def test_the_endpoint_only_reads(hub, chdb_store, sql):
    chdb_store.insert("steps", table("steps", 2, job="kept"), token="kept")
    answer = httpx.post(hub, timeout=60, content=sql, headers=BEARER)
    assert answer.status_code >= 400
    assert int(answer.headers["X-ClickHouse-Exception-Code"]) > 0
    assert "DB::Exception" in answer.text
    assert "root:" not in answer.text
    assert count(chdb_store, "kept") == 2


def test_nothing_is_written_to_files(hub, tmp_path):
    target = tmp_path / "out.tsv"
    answer = httpx.post(hub, timeout=60, content=f"SELECT 1 INTO OUTFILE '{target}'", headers=BEARER)
    assert answer.status_code == 403
    assert not target.exists()


def test_an_unknown_database_and_a_bad_statement_have_their_codes(hub):
    def code(**request):
        return httpx.post(hub, timeout=60, headers=BEARER, **request).headers["X-ClickHouse-Exception-Code"]

    assert code(content="SELECT 1", params={"database": "other"}) == "81"
    assert code(content="SELECT FROM WHERE") == "62"
    assert code(content="SELECT * FROM nowhere") == "60"


def test_many_readers_while_batches_arrive(hub, hub_store, chdb_store):
    failures = []

    def write(number):
        for i in range(5):
            sent = table("steps", 20, job="busy", first=i * 20)
            data = encode("steps", sent, source=f"w{number}", first_row=i * 20)
            if post(hub, "steps", data).status_code != 200:
                failures.append("write")

    def read():
        try:
            for _ in range(5):
                count(hub_store, "busy")
        except PulsetrainError as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(3)]
    threads += [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert count(chdb_store, "busy") == 300


def test_a_result_of_a_million_rows_arrives_whole(hub_store):
    found = hub_store.query("SELECT number FROM numbers(1000000)")
    assert isinstance(found, pa.Table)
    assert found.num_rows == 1_000_000


def test_prometheus_sees_what_was_stored(hub):
    data = encode("steps", table("steps", 3, job="seen"), source="node-7/abc", first_row=0)
    post(hub, "steps", data)
    post(hub, "steps", data)
    post(hub, "steps", b"garbage")
    assert httpx.get(f"{hub}/metrics", timeout=60).status_code == 401
    lines = httpx.get(f"{hub}/metrics", timeout=60, headers=BEARER).text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(values['pulsetrain_ingest_rows_total{record="steps"}']) >= 3
    assert float(values['pulsetrain_ingest_repeated_rows_total{record="steps"}']) >= 3
    assert float(values["pulsetrain_ingest_refused_batches_total"]) >= 1
    assert float(values["pulsetrain_ingest_bytes_total"]) >= 2 * len(data)
    assert float(values['pulsetrain_ingest_last_seen_timestamp_seconds{node="node-7"}']) > 1.7e9
    assert float(values["pulsetrain_ingest_waiting_rows"]) == 0


def test_impossible_times_are_in_quarantine(hub, chdb_store):
    data = encode("steps", table("steps", 2, job="odd", start=[5, 10**18]), source="n/odd", first_row=0)
    assert post(hub, "steps", data).json() == {"stored": 2}
    assert count(chdb_store, "odd") == 1
    sql = "SELECT record, source, rows FROM quarantine WHERE source = 'n/odd'"
    assert chdb_store.query(sql).to_pylist() == [{"record": "steps", "source": "n/odd", "rows": 1}]
