"""Echo and the last lines of a rank's output."""

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.agent import output
from pulsetrain.agent.output import Echo, last_lines
from pulsetrain.agent.processes.rank import TIMED_OUT
from tests.recovery.fakes import FakeClock


@given(text=st.text(alphabet="ab\n", max_size=60), cuts=st.lists(st.integers(0, 60), max_size=5))
def test_echo_is_the_same_however_the_output_arrives(text, cuts):
    screen = io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank_3.out"
        echo = Echo()
        echo.follow(path, "[3] ", screen)
        echo.poll()
        for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(text)], strict=True):
            with path.open("a") as file:
                file.write(text[start:end])
            echo.poll()
        echo.poll(final=True)
        echo.flush(10)
    lines = text.split("\n") if not text.endswith("\n") else text.split("\n")[:-1]
    assert screen.getvalue() == "".join(f"[3] {line}\n" for line in lines if text)


def test_echo_shows_what_was_written_before_it_followed(tmp_path):
    (tmp_path / "out").write_text("early\n")
    screen = io.StringIO()
    echo = Echo()
    echo.follow(tmp_path / "out", "", screen)
    echo.poll(final=True)
    echo.flush(10)
    assert screen.getvalue() == "early\n"


def test_a_closed_terminal_is_given_up_in_silence(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    (tmp_path / "out").write_text("nobody reads this\n")
    echo = Echo()
    stream = os.fdopen(writing, "w")
    echo.follow(tmp_path / "out", "", stream)
    echo.poll(final=True)
    echo.flush(10)
    with contextlib.suppress(BrokenPipeError):
        stream.close()


def shown(folder, *parts, final=True):
    """What is echoed of a file that got these parts, each with a look after it."""
    screen, path, echo = io.StringIO(), folder / "out", Echo()
    echo.follow(path, "[3] ", screen)
    for part in parts:
        with path.open("ab") as file:
            file.write(part)
        echo.poll()
    echo.poll(final=final)
    echo.flush(10)
    return screen.getvalue(), echo


def test_of_a_progress_bar_the_last_state_is_shown_and_little_is_held(tmp_path):
    bar = b"".join(b"\r%3d%%|####|" % n for n in range(100))
    text, _ = shown(tmp_path, *[bar] * 50, b"\r100%|####|\ndone\n")
    assert text == "[3] 100%|####|\n[3] done\n"
    (tmp_path / "out").unlink()
    _, echo = shown(tmp_path, *[bar] * 50, final=False)
    assert sum(len(file.partial) for file in echo._files) < 100


def test_a_bar_that_goes_on_for_long_is_shown_now_and_then(tmp_path):
    screen, path, clock = io.StringIO(), tmp_path / "err", FakeClock()
    echo = Echo(clock.monotonic_s)
    echo.follow(path, "[0] ", screen)

    def shown_after(seconds, part):
        with path.open("ab") as file:
            file.write(part)
        clock.now_s += seconds
        echo.poll()
        echo.flush(10)
        text = screen.getvalue()
        screen.seek(0)
        screen.truncate()
        return text.splitlines()

    assert shown_after(0, b"loading\n\r  0%|  | 0/99") == ["[0] loading"]
    assert shown_after(output.BAR_S - 1, b"\r  4%|  | 4/99") == []
    assert shown_after(1, b"\r  5%|# | 5/99") == ["[0]   5%|# | 5/99"]
    assert shown_after(output.BAR_S - 1, b"\r  9%|# | 9/99") == []
    assert shown_after(1, b"") == ["[0]   9%|# | 9/99"]
    assert shown_after(2 * output.BAR_S, b"") == [], "nothing has changed"
    assert shown_after(0, b"\r100%|##| 99/99\n") == ["[0] 100%|##| 99/99"]
    assert shown_after(2 * output.BAR_S, b"dots ...") == []
    assert shown_after(2 * output.BAR_S, b".....") == [], "a line that only grows is shown once"
    assert shown_after(0, b"\n") == ["[0] dots ........"]
    assert shown_after(1, b"\r  0%") == []
    assert shown_after(output.BAR_S, b"") == ["[0]   0%"], "another bar"


def test_a_line_without_an_end_is_cut_and_says_so(tmp_path):
    text, _ = shown(tmp_path, *[b"x" * 100_000] * 5, b"\nnext\n")
    said = f" (the rest of this line is left out here: see {tmp_path / 'out'})"
    assert text == "[3] " + "x" * output.LINE_BYTES + said + "\n[3] next\n"


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("more", [0, 1])
def test_only_a_line_that_was_cut_says_so(tmp_path, parts, more):
    size = output.LINE_BYTES // parts
    text, _ = shown(tmp_path, *[b"x" * size] * parts, b"x" * more + b"\n", b"\rshort\n", b"y")
    lines = text.splitlines()
    assert ("left out" in lines[0]) == bool(more)
    assert lines[1:] == ["[3] short", "[3] y"]


def test_what_runs_ahead_is_left_out_and_a_line_says_how_much(tmp_path, monkeypatch):
    monkeypatch.setattr(output, "BEHIND_BYTES", 1000)
    monkeypatch.setattr(output, "POLL_BYTES", 100)
    text, _ = shown(tmp_path, b"0123456\n" * 1000)
    lines = text.splitlines()
    assert lines[0] == f"[3] (7,900 bytes of {tmp_path / 'out'} are left out here)"
    assert lines[1:] == ["[3] 456"] + ["[3] 0123456"] * 12


def test_a_terminal_that_was_stopped_holds_nobody_up(tmp_path, monkeypatch):
    monkeypatch.setattr(output, "WAITING_BYTES", 1000)
    moves = threading.Event()

    class Stopped(io.StringIO):
        def write(self, text):
            moves.wait(60)
            return super().write(text)

    screen, path, echo = Stopped(), tmp_path / "out", Echo()
    echo.follow(path, "", screen)
    began_s = time.monotonic()
    for _ in range(20):
        with path.open("a") as file:
            file.write("0123456789\n" * 1000)
        echo.poll()
    echo.poll(final=True)
    echo.flush(0.05)
    assert time.monotonic() - began_s < 20
    assert echo._writer._bytes < 10 * output.POLL_BYTES
    moves.set()
    echo.flush(10)
    assert screen.getvalue().startswith("0123456789\n")


def test_a_stream_that_raises_anything_does_not_end_the_echo(tmp_path):
    class Broken(io.StringIO):
        def write(self, text):
            if "first" in text:
                raise LookupError("unknown encoding")
            return super().write(text)

    screen, path, echo = Broken(), tmp_path / "out", Echo()
    echo.follow(path, "", screen)
    for text in ("first\n", "second\n"):
        with path.open("a") as file:
            file.write(text)
        echo.poll()
    echo.flush(10)
    assert (screen.getvalue(), echo._writer._bytes) == ("second\n", 0)


def test_a_pipe_that_does_not_block_gets_everything(tmp_path):
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    text = "".join(f"line {number}\n" for number in range(40_000))
    (tmp_path / "out").write_text(text)
    echo, got = Echo(), []

    def read():
        while chunk := os.read(reading, 5000):
            got.append(chunk)

    reader = threading.Thread(target=read)
    with os.fdopen(writing, "w") as stream:
        echo.follow(tmp_path / "out", "", stream)
        echo.poll(final=True)
        reader.start()
        echo.flush(10)
    reader.join(10)
    os.close(reading)
    assert b"".join(got).decode() == text


def test_what_a_stream_does_not_take_at_the_end_is_left_out_and_a_line_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(output, "WAITING_BYTES", 100)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writing, b"x" * 4096):
            pass
    echo, got = Echo(), []
    with os.fdopen(writing, "w") as stream:
        for rank in range(5):
            (tmp_path / f"{rank}").write_text("y" * 99 + "\n")
            echo.follow(tmp_path / f"{rank}", "", stream)
        echo.poll(final=True)
        reader = threading.Thread(target=lambda: got.extend(iter(lambda: os.read(reading, 65536), b"")))
        reader.start()
        echo.flush(10)
    reader.join(10)
    os.close(reading)
    lines = b"".join(got).decode().lstrip("x").splitlines()
    shown = sum(line == "y" * 99 for line in lines)
    left_out = f"({(5 - shown) * 100} characters of ranks are left out here: see their log files)"
    assert (shown < 5, lines[-1]) == (True, left_out)


def test_a_log_that_somebody_empties_is_echoed_from_its_new_begin(tmp_path):
    log, screen, echo = tmp_path / "out", io.StringIO(), Echo()
    log.write_text("before\nunfinished")
    echo.follow(log, "", screen)
    echo.poll()
    log.write_text("after\n")
    echo.poll()
    echo.poll(final=True)
    echo.flush(10)
    assert screen.getvalue() == "before\nafter\n"


def test_an_agent_ends_with_its_own_status_although_nobody_reads_its_output(tmp_path):
    (tmp_path / "out").write_text(("0123456789" * 100 + "\n") * 500)
    script = f"""
import pathlib, sys
from pulsetrain.agent.output import Echo
echo = Echo()
echo.follow(pathlib.Path({str(tmp_path / "out")!r}), "", sys.stdout)
echo.poll(final=True)
echo.flush(0.2)
sys.exit(7)
"""
    reading, writing = os.pipe()  # it holds 64 KiB
    done = subprocess.run([sys.executable, "-c", script], stdout=writing, stderr=subprocess.PIPE, timeout=60)
    os.close(reading)
    os.close(writing)
    assert (done.returncode, done.stderr) == (7, b"")


def test_last_lines_leave_blank_lines_out_and_survive_a_missing_file(tmp_path):
    path = tmp_path / "err"
    path.write_text("x" * 40_000 + "\n\nTraceback\n  \nValueError: boom\n")
    assert last_lines(path, 2) == ("Traceback", "ValueError: boom")
    assert last_lines(tmp_path / "none", 2) == ()


def test_what_stacks_have_pushed_out_of_the_last_lines_is_kept_where_it_tells_why(tmp_path):
    path = tmp_path / "err"
    said = "[rank3]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)"
    path.write_text(f"{said}\n" + "  File forward.py, line 9 in step\n" * 1000)
    lines = last_lines(path, 3, TIMED_OUT)
    assert (len(lines), "Watchdog caught" in lines[0]) == (4, True)
    assert len(last_lines(path, 3)) == 3
