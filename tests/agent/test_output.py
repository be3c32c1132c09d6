"""Echo and the last lines of a rank's output."""

import contextlib
import io
import os
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.agent.output import Echo, last_lines


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
    lines = text.split("\n") if not text.endswith("\n") else text.split("\n")[:-1]
    assert screen.getvalue() == "".join(f"[3] {line}\n" for line in lines if text)


def test_echo_shows_what_was_written_before_it_followed(tmp_path):
    (tmp_path / "out").write_text("early\n")
    screen = io.StringIO()
    echo = Echo()
    echo.follow(tmp_path / "out", "", screen)
    echo.poll(final=True)
    assert screen.getvalue() == "early\n"


def test_a_closed_terminal_is_given_up_in_silence(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    (tmp_path / "out").write_text("nobody reads this\n")
    echo = Echo()
    stream = os.fdopen(writing, "w")
    echo.follow(tmp_path / "out", "", stream)
    echo.poll(final=True)
    with contextlib.suppress(BrokenPipeError):
        stream.close()


def test_last_lines_leave_blank_lines_out_and_survive_a_missing_file(tmp_path):
    path = tmp_path / "err"
    path.write_text("x" * 40_000 + "\n\nTraceback\n  \nValueError: boom\n")
    assert last_lines(path, 2) == ("Traceback", "ValueError: boom")
    assert last_lines(tmp_path / "none", 2) == ()
