from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.core.errors import UsageError
from pulsetrain.stream.store.reader import QueryFailed, ReaderConfig
from pulsetrain.stream.store.readonly import check

REFUSED = {"file", "url", "s3", "remote", "executable", "python", "numbers", "view", "aigenerate"}


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "select count() from spans where message = 'DROP TABLE x; -- '",
        "WITH 1 AS x SELECT x -- file('/etc/passwd')",
        "SELECT 1 /* ; DROP */ FROM numbers(3)",
        "(SELECT 1) UNION ALL (SELECT 2)",
        "SHOW TABLES",
        "DESCRIBE TABLE spans",
        "EXPLAIN SELECT 1",
        "EXISTS TABLE spans",
        "SELECT 'it''s \\' fine' || \"a\"\"b\" FROM `t``x`",
        "SELECT sum(a) FROM t WHERE url = {u:String} FORMAT Native",
        "SELECT airport FROM t",
        "SELECT 1.5e-3 + .5 - 0xFF / 1_000 + t.1.2",
        "SELECT 'für file(x)' AS x",
    ],
)
def test_reading_statements_pass_unchanged(sql):
    assert check(sql, REFUSED) == sql
    assert check(f"{sql}\n;\n;", REFUSED).rstrip("\n") == sql


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("", "empty statement"),
        ("INSERT INTO spans VALUES (1)", "INSERT"),
        ("drop table spans", "drop"),
        ("SET readonly = 0", "SET"),
        ("SYSTEM SHUTDOWN", "SYSTEM"),
        ("KILL QUERY WHERE 1", "KILL"),
        ("USE system", "USE"),
        ("/* SELECT */ ALTER TABLE x DELETE WHERE 1", "ALTER"),
        ("SELECT 1; SELECT 2", "one statement"),
        ("SELECT 1; DROP TABLE spans", "one statement"),
        ("SELECT 1 INTO OUTFILE '/tmp/x'", "OUTFILE"),
        ("SELECT 1 into/**/ outfile '/tmp/x'", "OUTFILE"),
        ("SELECT * FROM file('/etc/passwd')", "file"),
        ("SELECT * FROM FILE ('/etc/passwd')", "file"),
        ("SELECT * FROM `file`('/etc/passwd')", "file"),
        ("SELECT * FROM \"fi\\x6ce\"('/etc/passwd')", "backslash"),
        ("SELECT arrayMap(file, ['/etc/passwd'])", "file"),
        ("SELECT * APPLY file FROM (SELECT '/etc/passwd')", "file"),
        ("SELECT * FROM url/* */('http://x')", "url"),
        ("SELECT * FROM s3('x')", "s3"),
        ("SELECT * FROM remote('x', y)", "remote"),
        ("DESCRIBE TABLE url('http://x')", "url"),
        ("SELECT * FROM Python(secret)", "python"),
        ("EXPLAIN SELECT * FROM executable('x')", "executable"),
        ("SELECT sleep(3)", "sleep"),
        ("SELECT aiGenerate('x')", "aigenerate"),
        ("SELECT \u2018 file(1) \u2019", "cannot read"),
        ("SELECT $a$ ' $a$, file(1)", "cannot read"),
        ("SELECT 'unterminated", "cannot read"),
        ("SELECT 1 /* unterminated", "cannot read"),
        ("SELECT 1 # comment", "cannot read"),
        ("SELECT 1\x00", "cannot read"),
        ("SELECT /* /* */ ' */ file('x') -- '", "cannot read"),
        ("SELECT 1 // ' \n , file('x') --'", "cannot read"),
        ("SELECT 1e--file('x')", "cannot read"),
        ("SELECT x'\\' , file(1) '", "cannot read"),
    ],
)
def test_everything_else_is_refused_with_its_reason(sql, why):
    with pytest.raises(UsageError, match=why):
        check(sql, REFUSED)


@given(st.text())
def test_no_string_literal_hides_what_follows_it(text):
    quoted = "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
    assert check(f"SELECT {quoted}", REFUSED)
    with pytest.raises(UsageError, match="file"):
        check(f"SELECT {quoted}, file('x')", REFUSED)


PIECES = [
    "'",
    '"',
    "`",
    "/*",
    "*/",
    "--",
    "\n",
    "\\",
    " ",
    ",",
    "1",
    "e",
    "x",
    "//",
    "CALL",
    "CALL",
    "||",
    "#",
    "''",
]


@pytest.mark.integration
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=14))
def test_no_way_of_quoting_lets_the_engine_read_a_file(secret, pieces):
    path, reader = secret
    sql = "SELECT 1 " + "".join(pieces).replace("CALL", f", file('{path}') ")
    try:
        passed = check(sql, REFUSED)
    except UsageError:
        return
    try:
        body = reader.read(passed, {}, "TabSeparated").body
    except QueryFailed:
        return
    assert b"never-to-be-read" not in body


@pytest.fixture(scope="module")
def secret(tmp_path_factory, chdb_store):
    path = tmp_path_factory.mktemp("secret") / "file.txt"
    path.write_text("never-to-be-read")
    reader = chdb_store.reader(ReaderConfig())
    assert b"never-to-be-read" in reader.read(f"SELECT file('{path}')", {}, "TabSeparated").body
    return path, reader
