"""Which switch and rail a node's ports are on, from Slurm's topology.conf or a TOML file of the site.

Slurm (man topology.conf): ``SwitchName=s0 Nodes=n[0-3]``, one line for each switch. A switch of switches has
``Switches=s[0-1]`` instead. TOML: tables ``[[switch]]`` with `name`, `nodes`, and where a node has a port on
each of several rails also `rail`.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pulsetrain.core.errors import ConfigError
from pulsetrain.core.json import JsonObject

MOST_NAMES = 100_000
"""that one expression may stand for"""
_KEYS = ("name", "nodes", "rail", "switches")


@dataclass(frozen=True, kw_only=True)
class Switch:
    """One switch. `nodes` are under it directly, `switches` are the names of switches below it."""

    name: str
    nodes: tuple[str, ...] = ()
    rail: str = ""
    switches: tuple[str, ...] = ()


@dataclass(frozen=True)
class NetworkLayout:
    """All switches of a site, in the order of the file."""

    switches: tuple[Switch, ...] = ()

    def switch_of(self, node: str, rail: str = "") -> str:
        """The access switch (ToR) of a node, on one rail or on the first that has it. Empty if unknown.

        >>> layout = NetworkLayout((Switch(name="s0", nodes=("a",), rail="r0"),))
        >>> layout.switch_of("a"), layout.switch_of("a", "r1"), layout.switch_of("b")
        ('s0', '', '')
        """
        for switch in self.switches:
            if node in switch.nodes and (not rail or switch.rail == rail):
                return switch.name
        return ""

    def under(self, switch: str) -> tuple[str, ...]:
        """The nodes under a switch, those under the switches below it included."""
        found = next((s for s in self.switches if s.name == switch), Switch(name=switch))
        below = [node for name in found.switches if name != switch for node in self.under(name)]
        return (*found.nodes, *below)


def read(path: Path) -> NetworkLayout:
    """The layout in a file: TOML if its name ends so, else Slurm's. Raises `ConfigError` with one line."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"topology {path}: {getattr(error, 'strerror', None) or error}") from error
    try:
        switches = tuple(_toml(text) if path.suffix == ".toml" else _slurm(text))
        _refuse_cycles(switches)
    except ValueError as error:
        raise ConfigError(f"topology {path}: {error}") from error
    return NetworkLayout(switches)


def _slurm(text: str) -> Iterator[Switch]:
    for number, line in enumerate(text.splitlines(), 1):
        pairs = {
            key.lower(): value
            for key, _, value in (part.partition("=") for part in line.partition("#")[0].split())
        }
        if not pairs:
            continue
        if "switchname" not in pairs:
            raise ValueError(f"line {number}: no SwitchName")
        nodes, below = pairs.get("nodes", ""), pairs.get("switches", "")
        for name in expand(pairs["switchname"]):
            yield Switch(name=name, nodes=tuple(expand(nodes)), switches=tuple(expand(below)))


def _toml(text: str) -> Iterator[Switch]:
    tables = tomllib.loads(text)
    unknown = sorted(tables.keys() - {"switch"})
    if unknown or not isinstance(tables.get("switch", []), list):
        raise ValueError(f"unknown key {unknown[0]!r}; allowed: switch" if unknown else "write [[switch]]")
    for number, row in enumerate(tables.get("switch", []), 1):
        yield _switch(number, row)


def _switch(number: int, row: JsonObject) -> Switch:
    where = f"switch {row.get('name', number)!r}"
    unknown = sorted(row.keys() - set(_KEYS))
    if unknown:
        raise ValueError(f"{where}: unknown key {unknown[0]!r}; allowed: {', '.join(_KEYS)}")
    if not isinstance(row.get("name"), str):
        raise ValueError(f"{where}: name is missing or no text")  # noqa: TRY004 - what a file holds is a value
    lists = {key: row.get(key, []) for key in ("nodes", "switches")}
    for key, value in lists.items():
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ValueError(f"{where}: {key} = {value!r}: not a list of texts")
    return Switch(
        name=row["name"],
        rail=str(row.get("rail", "")),
        nodes=tuple(name for item in lists["nodes"] for name in expand(item)),
        switches=tuple(name for item in lists["switches"] for name in expand(item)),
    )


def expand(names: str) -> list[str]:
    """The names that Slurm's notation stands for. Raises `ValueError` where it is not closed or too many.

    >>> expand("a,n[08-10,12],r[0-1]s[1-2]")
    ['a', 'n08', 'n09', 'n10', 'n12', 'r0s1', 'r0s2', 'r1s1', 'r1s2']
    """
    if set("[]") & set(re.sub(r"\[[^][]*\]", "", names)):
        raise ValueError(f"{names!r}: a bracket is not closed")
    found: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^][]*\])+", names):
        pieces = re.findall(r"\[[^][]*\]|[^\[\]]+", part)
        choices = [_numbers(piece[1:-1]) if piece.startswith("[") else [piece] for piece in pieces]
        for combined in itertools.product(*choices):
            found.append("".join(combined))
            if len(found) > MOST_NAMES:
                raise ValueError(f"{names!r}: more than {MOST_NAMES} names")
    return found


def _numbers(ranges: str) -> list[str]:
    found: list[str] = []
    for part in ranges.split(","):
        low, dash, high = part.partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            raise ValueError(f"[{ranges}]: allowed: numbers and ranges, as [0-3,7]")
        last = int(high or low)
        if last - int(low) >= MOST_NAMES:
            raise ValueError(f"[{ranges}]: more than {MOST_NAMES} names")
        found += [str(number).zfill(len(low)) for number in range(int(low), last + 1)]
    return found


def _refuse_cycles(switches: tuple[Switch, ...]) -> None:
    """Raises `ValueError` where a switch is below itself."""
    below = {switch.name: switch.switches for switch in switches}
    for name in below:
        seen: set[str] = set()
        todo = list(below[name])
        while todo:
            child = todo.pop()
            if child == name:
                raise ValueError(f"switch {name!r} is below itself")
            if child not in seen:
                seen.add(child)
                todo += below.get(child, ())
