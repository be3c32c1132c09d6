"""Patterns mean what they mean to Python, and no pattern and no line takes long."""

import re
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pulsetrain.core import linear_regex
from pulsetrain.core.linear_regex import PatternSet, UnsupportedPattern, check

atoms = st.sampled_from(
    ["a", "b", "ab", "B", "cab", r"\d", r"\w", r"\s", ".", "[ab]", "[^a]", r"\b", "^", "$", "(?:ab|c)",
     "(a|bb|)", "x_", "[a-c1]", r"\W", r"\B", "abc", "(?i:AB)"]
)  # fmt: skip
repeats = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{0,2}", "{1,}", "*?", "{3,5}"])


@st.composite
def patterns(draw):
    parts = draw(st.lists(st.tuples(atoms, repeats), min_size=1, max_size=4))
    pattern = "".join(a + (r if not a.startswith(("^", "$", "\\b", "\\B")) else "") for a, r in parts)
    return draw(st.sampled_from([pattern, f"(?i){pattern}", f"(?:{pattern})+c", f"{pattern}|cc"]))


@settings(max_examples=60)
@given(st.lists(patterns(), min_size=1, max_size=3), st.text(alphabet="abcABC1_ -", min_size=1, max_size=12))
@example(["(?:a*)*c"], "aac")
@example(["(?:a{0,2}){2}c"], "aaaac")
@example(["(?:|a)+$"], "b")
def test_a_set_finds_what_pythons_search_finds(chosen, line):
    wanted = next((i for i, pattern in enumerate(chosen) if re.search(pattern, line)), -1)
    assert PatternSet(chosen).first(line) == wanted


@pytest.mark.parametrize(
    ("pattern", "line"),
    [(r"(a+)+$", "a" * 2000 + "b"), (r"(.*a){15}x", "a" * 2000), (r"(\w+\s?)+:", "word " * 400),
     (r"a.*a.*a.*z", "a" * 2000)],
)  # fmt: skip
def test_a_pattern_that_would_hold_up_python_takes_linear_time(pattern, line):
    known = PatternSet([pattern])
    known.first(line)
    began = time.process_time()
    assert known.first(line) == -1
    assert time.process_time() - began < 0.05


def test_a_search_ends_when_its_time_is_up():
    with pytest.raises(TimeoutError):
        PatternSet([r"(.|x){200}y"]).first("".join(map(chr, range(1000, 3000))), until_s=time.monotonic())


@pytest.mark.parametrize(
    ("pattern", "words"),
    [("a(", "no regular expression"), (r"(a)\1", "reference"), ("(?=a)b", "lookahead"),
     ("(?<!a)b", "lookahead"),
     ("(a{1000}){1000}", "too large"), ("(?>a)", "atomic"), ("(" * 5000, "no regular expression")],
)  # fmt: skip
def test_what_an_automaton_cannot_do_is_refused_in_one_line(pattern, words):
    with pytest.raises(UnsupportedPattern, match=words) as refused:
        check(pattern)
    assert "\n" not in str(refused.value)


def test_memory_is_bounded_whatever_the_lines_hold(monkeypatch):
    monkeypatch.setattr(linear_regex, "MOST_REMEMBERED", 50)
    known = PatternSet([r"(.|x){3}y"])
    for i in range(6):
        assert known.first("".join(chr(200 + i * 100 + j) for j in range(100)) + "xxxy") == 0
    assert known._remembered <= 50
