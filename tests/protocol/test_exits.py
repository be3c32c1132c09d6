"""A rank's exit in words."""

from __future__ import annotations

from pulsetrain.protocol.exits import exit_text, last_error


def test_the_last_line_that_looks_like_an_exception_is_quoted():
    assert last_error(["torch.OutOfMemoryError: full", "see the docs", ""]) == "torch.OutOfMemoryError: full"
    assert last_error(["one", "two", " "]) == "two"
    assert last_error([]) == ""


def test_an_unknown_signal_keeps_its_number():
    assert exit_text(-200) == "signal 200"
