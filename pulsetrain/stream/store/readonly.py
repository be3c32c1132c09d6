"""Which SQL from outside may run: one statement that reads tables of the store, and nothing else.

The engine itself runs with ``readonly = 1``, which refuses writes, DDL and settings. An embedded engine still
allows several statements, INTO OUTFILE, KILL, USE, and functions that reach files, the network, Python or
another program. This module refuses them.

The text is cut into tokens as ClickHouse's own lexer cuts it. What the two might read differently is refused
as well: non-ASCII outside strings, heredocs, ``#`` and ``//`` comments, comments within comments, x'..'
literals, and numbers with letters behind them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from pulsetrain.core.errors import UsageError

ALLOWED = ("SELECT", "WITH", "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "EXISTS")
"""First words of statements that may run."""

HARMLESS = frozenset(
    {
        "generateseries", "generate_series", "merge", "null", "numbers", "numbers_mt", "primes",
        "values", "view", "zeros", "zeros_mt",
    }
)  # fmt: skip
"""Table functions that read nothing but the store."""

REACHING = frozenset({"file", "sleep", "sleepeachrow", "catboostevaluate", "getclienthttpheader"})
"""Scalar functions that are refused. So is every function whose name starts with ``ai``: it calls a model
over the network. They may not even be named, because ``arrayMap(file, ...)`` and ``APPLY file`` call them
too."""

_TOKEN = re.compile(
    r"""
      (?P<space>\s+|--[^\n]*|/\*(?:(?!/\*).)*?\*/)
    | (?P<string>'(?:[^'\\]|\\.|'')*')
    | (?P<quoted>"(?:[^"\\]|\\.|"")*"|`(?:[^`\\]|\\.|``)*`)
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*+(?!'))
    | (?P<number>(?:0[xX][0-9A-Fa-f_]++|[0-9][0-9_]*+(?:\.[0-9_]*+)?(?:[eE][-+]?[0-9]++)?+)(?![A-Za-z]))
    | (?P<sign>/(?![*/])|[-+*%(),.;:<>=!?\[\]{}@|^~&])
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)


def check(sql: str, refused: Collection[str]) -> str:
    """`sql` without a closing semicolon, if it may run. Raises `UsageError` that names what may not.

    `refused` holds lower-case names of functions that may not be called beside `REACHING`.
    """
    tokens = list(_tokens(sql))
    while tokens and tokens[-1][:2] == ("sign", ";"):
        sql = sql[: tokens.pop()[2]]
    first = next((text for kind, text, _ in tokens if text != "("), "")
    if first.upper() not in ALLOWED:
        raise UsageError(f"only {', '.join(ALLOWED)} may run here, not {first or 'an empty statement'!r}")
    for (kind, text, _), (_, following, _) in zip(tokens, [*tokens[1:], ("", "", 0)], strict=True):
        if text == ";" and kind == "sign":
            raise UsageError("only one statement at a time may run here")
        if kind == "word" and text.upper() == "INTO" and following.upper() == "OUTFILE":
            raise UsageError("INTO OUTFILE may not run here")
        if kind in ("word", "quoted"):
            _check_name(text.lower(), following == "(", refused)
    return sql


def _check_name(name: str, called: bool, refused: Collection[str]) -> None:
    reaching = name in REACHING or (name in refused and name.startswith("ai"))
    if reaching or (called and name in refused and name not in HARMLESS):
        raise UsageError(f"function {name} may not run here")


def _tokens(sql: str) -> Iterator[tuple[str, str, int]]:
    """(kind, text, offset) of each token that is not space. A quoted name comes without its quotes."""
    at = 0
    while at < len(sql):
        match = _TOKEN.match(sql, at)
        if match is None:
            raise UsageError(f"cannot read the statement at {sql[at : at + 20]!r}")
        kind, text = match.lastgroup or "", match.group()
        if kind == "quoted":
            text = _unquoted(text)
        if kind != "space":
            yield kind, text, at
        at = match.end()


def _unquoted(text: str) -> str:
    if "\\" in text:
        raise UsageError(f"name {text} may not hold a backslash here")
    return text[1:-1].replace(text[0] * 2, text[0])
