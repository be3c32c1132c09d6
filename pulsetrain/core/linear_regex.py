"""Regular expressions that are searched in a time that grows with the length of the text, not faster.

Python's `re` may need exponential time for a pattern such as ``(a+)+$``. Here all patterns of a set are one
nondeterministic automaton, whose sets of states are computed when they first occur and then remembered
(Thompson, CACM 1968; Cox, "Regular Expression Matching Can Be Simple And Fast", 2007). Patterns have Python's
syntax. What needs more than an automaton is refused: references to groups, lookaround, atomic groups.
"""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

_PARSER: Any = importlib.import_module("re._parser")  # what re.compile itself parses with
MOST_STATES = 2_000
"""States that one pattern may have. A repetition such as x{1000} needs as many."""
MOST_REMEMBERED = 20_000
"""Steps of the automaton that are remembered. Then all are forgotten, so that memory is bounded."""
LEAST_NEEDLE = 3
"""Shorter texts are in nearly every line, so to look for them first does not pay."""

_CHAR, _SPLIT, _ASSERT, _MATCH = range(4)
_START, _NO_WORD, _WORD = range(3)
_REFUSED = {
    "GROUPREF": "a reference to a group",
    "GROUPREF_EXISTS": "a reference to a group",
    "ASSERT": "lookahead or lookbehind",
    "ASSERT_NOT": "lookahead or lookbehind",
    "ATOMIC_GROUP": "an atomic group",
    "POSSESSIVE_REPEAT": "a possessive repetition",
}
_CATEGORIES: dict[str, Callable[[str], bool]] = {
    "CATEGORY_DIGIT": str.isdecimal,
    "CATEGORY_NOT_DIGIT": lambda c: not c.isdecimal(),
    "CATEGORY_SPACE": str.isspace,
    "CATEGORY_NOT_SPACE": lambda c: not c.isspace(),
    "CATEGORY_WORD": lambda c: c.isalnum() or c == "_",
    "CATEGORY_NOT_WORD": lambda c: not (c.isalnum() or c == "_"),
}

Test = Callable[[str], bool]
Needles = list[tuple[str, ...]]
"""A match has at least one text of each entry, in lower case."""


class UnsupportedPattern(ValueError):
    """A pattern that is no regular expression, or needs more than an automaton. The message is one line."""


@dataclass
class _Automaton:
    """Instructions of all patterns. `after` is where each one leads."""

    kind: list[int] = field(default_factory=list)
    after: list[tuple[int, ...]] = field(default_factory=list)
    test: list[Test | None] = field(default_factory=list)
    at: list[str] = field(default_factory=list)

    def add(self, kind: int, after: tuple[int, ...], test: Test | None = None, at: str = "") -> int:
        self.kind.append(kind)
        self.after.append(after)
        self.test.append(test)
        self.at.append(at)
        return len(self.kind) - 1


@dataclass(eq=False)
class _State:
    """A set of instructions that the automaton is in, and what was before. `next` is filled as it is used."""

    instructions: frozenset[int]
    before: int
    next: dict[str, tuple[_State, tuple[int, ...]]] = field(default_factory=dict)
    at_end: tuple[int, ...] | None = None


class PatternSet:
    """Patterns that are searched for together. Raises `UnsupportedPattern`."""

    def __init__(self, patterns: Sequence[str], *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._automaton = _Automaton()
        starts: list[int] = []
        self._needles: list[Needles] = []
        for number, pattern in enumerate(patterns):
            tree, flags = _parsed(pattern)
            before = len(self._automaton.kind)
            match = self._automaton.add(_MATCH, (number,))
            starts.append(_Compiler(self._automaton, before).sequence(tree, flags, match))
            self._needles.append(_needles(tree))
        self._starts = frozenset(starts)
        self._states: dict[tuple[frozenset[int], int], _State] = {}
        self._remembered = 0

    def first(self, text: str, *, until_s: float = float("inf")) -> int:
        """The number of the first pattern of the set that matches anywhere in `text`, -1 for none.

        Raises `TimeoutError` where the clock passes `until_s`.
        """
        found = self._search(text, until_s)
        return min(found, default=-1)

    def _search(self, text: str, until_s: float) -> set[int]:
        lowered = text.lower()
        if not any(_may_match(needles, lowered) for needles in self._needles):
            return set()
        found: set[int] = set()
        state = self._state(self._starts, _START)
        for char in text:
            step = state.next.get(char)
            if step is None:
                if self._monotonic_s() > until_s:
                    raise TimeoutError
                step = self._step(state, char)
            state, matched = step
            if matched:
                found.update(matched)
                if 0 in found:
                    return found
        if state.at_end is None:
            state.at_end = self._closure(state, "")[1]
        return found.union(state.at_end)

    def _state(self, instructions: frozenset[int], before: int) -> _State:
        key = (instructions, before)
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = _State(instructions, before)
        return state

    def _step(self, state: _State, char: str) -> tuple[_State, tuple[int, ...]]:
        """Where `char` leads from `state`, and what matched before it."""
        if self._remembered >= MOST_REMEMBERED:
            self._states.clear()
            self._remembered = 0
            state = self._state(state.instructions, state.before)
        chars, matched = self._closure(state, char)
        automaton = self._automaton
        reached = {automaton.after[i][0] for i in chars if _tested(automaton.test[i], char)}
        following = self._state(frozenset(reached | self._starts), _WORD if _is_word(char) else _NO_WORD)
        step = state.next[char] = (following, matched)
        self._remembered += 1
        return step

    def _closure(self, state: _State, following: str) -> tuple[list[int], tuple[int, ...]]:
        """The instructions that wait for a character, and what matched. `following` is "" at the end."""
        automaton, seen = self._automaton, set(state.instructions)
        todo, chars, matched = list(seen), [], []
        while todo:
            i = todo.pop()
            kind = automaton.kind[i]
            if kind == _CHAR:
                chars.append(i)
                continue
            if kind == _MATCH:
                matched.append(automaton.after[i][0])
                continue
            if kind == _ASSERT and not _holds(automaton.at[i], state.before, following):
                continue
            new = [j for j in automaton.after[i] if j not in seen]
            seen.update(new)
            todo += new
        return chars, tuple(matched)


def check(pattern: str) -> None:
    """Raises `UnsupportedPattern` with one line that says what is wrong."""
    PatternSet([pattern])


def _tested(test: Test | None, char: str) -> bool:
    return test is not None and test(char)


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"


def _holds(at: str, before: int, following: str) -> bool:
    """Whether an assertion holds between what was before and what follows."""
    if at in ("AT_BEGINNING", "AT_BEGINNING_STRING"):
        return before == _START
    if at in ("AT_END", "AT_END_STRING"):
        return not following
    boundary = (before == _WORD) != (bool(following) and _is_word(following))
    return boundary if at == "AT_BOUNDARY" else not boundary


def _parsed(pattern: str) -> tuple[Any, int]:
    try:
        tree = _PARSER.parse(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise UnsupportedPattern(f"no regular expression: {' '.join(str(error).split())}") from error
    return tree, int(tree.state.flags)


class _Compiler:
    """Adds the instructions of one pattern, from its end to its beginning."""

    def __init__(self, automaton: _Automaton, first: int) -> None:
        self._automaton, self._first = automaton, first

    def sequence(self, items: Iterable[Any], flags: int, after: int) -> int:
        """The instruction at which these items begin. What follows them is at `after`."""
        for op, value in reversed(list(items)):
            after = self._item(str(op), value, flags, after)
        return after

    def _add(self, kind: int, after: tuple[int, ...], test: Test | None = None, at: str = "") -> int:
        if len(self._automaton.kind) - self._first >= MOST_STATES:
            raise UnsupportedPattern(f"too large: more than {MOST_STATES} states; repeat less")
        return self._automaton.add(kind, after, test, at)

    def _item(self, op: str, value: Any, flags: int, after: int) -> int:
        if op in _REFUSED:
            raise UnsupportedPattern(f"{_REFUSED[op]} is not allowed: a line must take linear time")
        if op in ("MAX_REPEAT", "MIN_REPEAT"):
            return self._repeat(value, flags, after)
        if op == "BRANCH":
            return self._add(_SPLIT, tuple(self.sequence(b, flags, after) for b in value[1]))
        if op == "SUBPATTERN":
            _, added, removed, items = value
            return self.sequence(items, (flags | added) & ~removed, after)
        if op == "AT":
            return self._add(_ASSERT, (after,), at=str(value))
        return self._add(_CHAR, (after,), _test(op, value, flags))

    def _repeat(self, value: Any, flags: int, after: int) -> int:
        least, most, items = int(value[0]), value[1], value[2]
        if str(most) == "MAXREPEAT":
            loop = self._add(_SPLIT, (after,))
            self._automaton.after[loop] = (self.sequence(items, flags, loop), after)
            begin = loop
        else:
            begin = after
            for _ in range(int(most) - least):
                begin = self._add(_SPLIT, (self.sequence(items, flags, begin), after))
        for _ in range(least):
            begin = self.sequence(items, flags, begin)
            self._add(_SPLIT, (begin,))  # counts an empty item too, so that x{0,9}{9}... ends
        return begin


def _test(op: str, value: Any, flags: int) -> Test:
    """What one character must be."""
    if op == "ANY":
        return (lambda c: True) if flags & re.DOTALL else (lambda c: c != "\n")
    if op in ("LITERAL", "NOT_LITERAL"):
        wanted = chr(value)
        if flags & re.IGNORECASE:
            lowered = wanted.lower()
            return (lambda c: c.lower() == lowered) if op == "LITERAL" else (lambda c: c.lower() != lowered)
        return (lambda c: c == wanted) if op == "LITERAL" else (lambda c: c != wanted)
    if op == "IN":
        return _class_test(value, ignore_case=bool(flags & re.IGNORECASE))
    raise UnsupportedPattern(f"{op.lower()} is not allowed")


def _class_test(items: Sequence[tuple[Any, Any]], *, ignore_case: bool) -> Test:
    negated = bool(items) and str(items[0][0]) == "NEGATE"
    tests = [_member(str(op), value) for op, value in items if str(op) != "NEGATE"]

    def test(char: str) -> bool:
        spellings = {char, char.lower(), char.upper()} if ignore_case else (char,)
        return any(t(c) for t in tests for c in spellings) != negated

    return test


def _member(op: str, value: Any) -> Test:
    if op == "CATEGORY":
        return _CATEGORIES[str(value)]
    low, high = (value, value) if op == "LITERAL" else value
    return lambda c: len(c) == 1 and low <= ord(c) <= high


def _may_match(needles: Needles, lowered: str) -> bool:
    """Whether a text in lower case has what a match needs."""
    for texts in needles:
        for text in texts:
            if text in lowered:
                break
        else:
            return False
    return True


def _needles(items: Iterable[Any]) -> Needles:
    """What each match of these items has. Empty where nothing is known."""
    needles: Needles = []
    run = ""
    for op, value in [*items, ("END", None)]:
        name = str(op)
        if name == "LITERAL" and value < 128:
            run += chr(value).lower()
            continue
        if len(run) >= LEAST_NEEDLE:
            needles.append((run,))
        run = ""
        needles += _inner_needles(name, value)
    return sorted(needles, key=len)


def _inner_needles(op: str, value: Any) -> Needles:
    if op == "SUBPATTERN":
        return _needles(value[3])
    if op in ("MAX_REPEAT", "MIN_REPEAT"):
        return _needles(value[2]) if value[0] >= 1 else []
    if op == "BRANCH":
        parts = [_needles(branch) for branch in value[1]]
        return [tuple(text for part in parts for text in part[0])] if all(parts) else []
    return []
