"""Lines of a rank: whole, in order, bounded, whatever is printed and however it arrives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.agent.log_bound import bound
from pulsetrain.collectors.machine.tail import Tail, TailConfig, severity
from pulsetrain.records.encoding import encode


def messages(batch) -> list[str]:
    return [] if batch is None else batch.column("message").to_list()


@given(st.binary(max_size=400), st.lists(st.integers(1, 40), max_size=20))
def test_how_the_bytes_arrive_changes_nothing(tmp_path_factory, data, cuts):
    folder = tmp_path_factory.mktemp("tail")
    data = data.replace(b"\r", b".")  # of a progress bar only what stands on the screen at the poll is kept
    whole, piecewise = Tail(folder / "a", source="stdout"), Tail(folder / "b", source="stdout")
    (folder / "a").write_bytes(data)
    got, at = [], 0
    with (folder / "b").open("ab", buffering=0) as file:
        for cut in cuts:
            file.write(data[at : at + cut])
            at += cut
            got += messages(piecewise.poll(1))
        file.write(data[at:])
    got += messages(piecewise.poll(1)) + messages(piecewise.poll(1, final=True))
    assert got == messages(whole.poll(1)) + messages(whole.poll(1, final=True))
    assert whole.last_lines == piecewise.last_lines


def test_rows_say_whose_line_it_is(tmp_path):
    path = tmp_path / "err"
    path.write_text("ok\nValueError: bad\n")
    batch = Tail(path, source="stderr", node="n", job="j", attempt=1, rank=3).poll(9)
    encode(batch, source="s", first_row=0)
    rows = batch.to_rows()
    assert [(r["severity"], r["message"]) for r in rows] == [("info", "ok"), ("error", "ValueError: bad")]
    assert (rows[0]["rank"], rows[0]["source"], rows[0]["node"], rows[0]["ts"]) == (3, "stderr", "n", 9)


def test_torchs_traceback_is_an_error_and_told_without_its_prefix(tmp_path):
    path = tmp_path / "err"
    path.write_text("[rank1]: Traceback (most recent call last):\n[rank1]:   File t.py\n[rank1]: Stop\nok\n")
    rows = Tail(path, source="stderr", rank=1).poll(1).to_rows()
    assert [row["message"] for row in rows] == [
        "Traceback (most recent call last):", "  File t.py", "Stop", "ok",
    ]  # fmt: skip
    assert [row["severity"] for row in rows] == ["error", "error", "error", "info"]


def test_an_unfinished_line_waits_and_ends_with_the_rank(tmp_path):
    path = tmp_path / "out"
    tail = Tail(path, source="stdout")
    assert tail.poll(1) is None
    path.write_text("begun")
    assert tail.poll(1) is None
    assert tail.last_lines == ("begun",)
    assert messages(tail.poll(1, final=True)) == ["begun"]


def test_a_progress_bar_is_one_line_and_little_memory(tmp_path):
    path = tmp_path / "out"
    tail = Tail(path, source="stderr")
    with path.open("ab", buffering=0) as file:
        for percent in range(100):
            file.write(b"\r\x1b[32m%d%% %s\x1b[0m" % (percent, b"#" * 500))
            assert tail.poll(1) is None
        file.write(b"\rdone\n")
    assert messages(tail.poll(1)) == ["done"]


def test_long_lines_are_cut_and_the_next_line_is_whole(tmp_path):
    path = tmp_path / "out"
    path.write_bytes(b"x" * 30_000 + b"\nnext\n")
    tail = Tail(path, source="stdout", config=TailConfig(line_bytes=100, poll_bytes=4096))
    got = [message for _ in range(20) for message in messages(tail.poll(1))]
    assert got == ["x" * 100, "next"]


def test_a_flood_is_skipped_and_counted(tmp_path):
    path = tmp_path / "out"
    lines = [f"line {i:06d}" for i in range(10_000)]
    path.write_text("\n".join(lines) + "\n")
    tail = Tail(path, source="stdout", config=TailConfig(poll_bytes=1200, behind_bytes=5000))
    got = messages(tail.poll(1))
    assert got == lines[-len(got) :]
    assert tail.skipped_bytes == 120_000 - 1200
    assert len(tail.last_lines) == 40


def test_what_a_hole_has_taken_before_it_was_read_is_counted_and_the_rest_is_whole(tmp_path):
    path = tmp_path / "out"
    lines = [f"line {i:06d} {'x' * 100}" for i in range(10_000)]
    path.write_text("\n".join(lines) + "\n")
    tail = Tail(path, source="stdout", config=TailConfig(poll_bytes=100_000))
    got = messages(tail.poll(1))
    try:
        assert bound(path, 1 << 19)
    except OSError as error:
        pytest.skip(f"no holes on this disk: {error}")
    while tail.poll(1) is None or len(tail.last_lines) < 40 or tail.last_lines[-1] != lines[-1]:
        pass
    unread = path.read_bytes()[100_000:].count(0)
    assert got == lines[: len(got)]
    assert tail.last_lines == tuple(lines[-40:])
    assert unread - 8 * 4096 < tail.skipped_bytes <= unread


def test_at_the_end_the_newest_lines_of_a_loud_rank_are_read(tmp_path):
    path = tmp_path / "out"
    lines = [f"line {i:06d}" for i in range(400)]
    path.write_text("\n".join(lines) + "\n")
    tail = Tail(path, source="stdout", config=TailConfig(poll_bytes=1200, behind_bytes=5000))
    got = messages(tail.poll(1, final=True))
    assert got == lines[-len(got) :]
    assert tail.skipped_bytes == 4800 - 1200


def test_a_truncated_file_is_read_from_its_beginning(tmp_path):
    path = tmp_path / "out"
    path.write_text("first\n" * 5)
    tail = Tail(path, source="stdout")
    tail.poll(1)
    path.write_text("again\n")
    assert messages(tail.poll(1)) == ["again"]


def test_bytes_that_are_no_text_are_kept_readable(tmp_path):
    path = tmp_path / "out"
    path.write_bytes(b"caf\xe9 \x00ok\n")
    assert messages(Tail(path, source="stdout").poll(1)) == ["caf\ufffd ok"]


def test_a_traceback_is_an_error_to_its_last_line(tmp_path):
    path = tmp_path / "err"
    path.write_text("Traceback (most recent call last):\n  File 'x'\n    boom()\nStrange thing\nafter\n")
    batch = Tail(path, source="stderr").poll(1)
    assert batch.column("severity").to_list() == ["error"] * 4 + ["info"]


def test_a_traceback_after_a_progress_bar_is_an_error(tmp_path):
    path = tmp_path / "err"
    path.write_text("\r 5%|5   |\r10%|1   | 1/9Traceback (most recent call last):\n  File 'x'\nStop\nafter\n")
    batch = Tail(path, source="stderr").poll(1)
    assert batch.column("severity").to_list() == ["error"] * 3 + ["info"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[rank0]:[W1120 20:00:00 x.cpp:1] Warning: slow", "warning"),
        ("W1120 21:40:20.593000 6138 torch/x.py:1028] Sending", "warning"),
        ("E1120 21:40:20.6 6138 torch/x.py:1] failed", "error"),
        ('{"level": "warn", "msg": "ERROR in text"}', "warning"),
        ("loss 2.31 lr 0.1", "info"),
        ("2026-01-01 DEBUG x", "debug"),
        ("FATAL: no memory", "critical"),
        ("node:12 NCCL WARN Call to ibv_poll_cq failed", "error"),
        ("/x/y.py:3: UserWarning: something", "warning"),
        ("RuntimeError: CUDA error: an illegal memory access", "error"),
    ],
)
def test_severity(line, expected):
    assert severity(line) == expected
