"""Which switches a machine's ports are connected to, as the switches say themselves (LLDP, IEEE 802.1AB).

Most switches send their name out of each port twice a minute. lldpd listens (Debian's package of that name),
and `lldpctl -f json` tells what it has heard: lldpctl(8). Where there is one interface, or one capability,
the list of them is the object itself.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from pulsetrain.core.errors import Unavailable
from pulsetrain.core.json import JsonObject

TOOL = "lldpctl"
LIMIT_S = 2.0
LONGEST_NAME = 200
SWITCHES = ("bridge", "router")
"""Capabilities of which a switch has one. A station, as the firmware of a network card, has none."""


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """The switch at the other end of an interface's cable, and which of its ports that is, "" if unknown."""

    interface: str
    switch: str
    port: str = ""


def read(program: str = TOOL, limit_s: float = LIMIT_S) -> list[Neighbour]:
    """What lldpd has heard by now. Nothing where its tool is not installed.

    Raises `Unavailable` with one line where the tool does not answer, as where lldpd does not run.
    """
    path = shutil.which(program)
    if path is None:
        return []
    try:
        done = subprocess.run(
            [path, "-f", "json"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{program}: no answer in {limit_s:g} s") from error
    except OSError as error:
        raise Unavailable(f"{program}: {error.strerror}") from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        raise Unavailable(f"{program}: exit status {done.returncode}: {_printable(lines[-1])}")
    return parse(done.stdout.decode(errors="replace"))


def parse(text: str) -> list[Neighbour]:
    """The switches in the output of `lldpctl -f json`, in its order. Raises `Unavailable` for other output.

    A neighbour that says what it can do, and can neither bridge nor route, is no switch. The name of a switch
    is its system name, else the value of its chassis id.

    >>> port = {"chassis": {"leaf-07": {"id": {"type": "mac", "value": "9a:7a:5f:e1:ae:b5"}}}}
    >>> parse(json.dumps({"lldp": {"interface": {"eth0": port}}}))
    [Neighbour(interface='eth0', switch='leaf-07', port='')]
    """
    try:
        told = json.loads(text)
    except ValueError as error:
        raise Unavailable(f"{TOOL}: its output is no JSON") from error
    if not isinstance(told, dict) or not isinstance(told.get("lldp"), dict):
        raise Unavailable(f"{TOOL}: its output has no 'lldp'")
    found = (
        _neighbour(interface, seen)
        for entry in _objects(told["lldp"].get("interface"))
        for interface, one_or_more in entry.items()
        for seen in _objects(one_or_more)
    )
    return [neighbour for neighbour in found if neighbour is not None]


def switch_of(neighbours: Sequence[Neighbour], interfaces: Collection[str]) -> str:
    """The switch of the interfaces by which a node is reached, "" where none is known.

    Where nothing was heard there, all its ports count. Ports on several switches, as of a bond, give the
    names of all of them, so that nodes that are connected alike get the same name.

    >>> heard = [Neighbour(interface="eth0", switch="b"), Neighbour(interface="eth1", switch="a")]
    >>> switch_of(heard, ["eth1"]), switch_of(heard, ["bond0"]), switch_of([], ["eth0"])
    ('a', 'a+b', '')
    """
    there = {n.switch for n in neighbours if n.interface in interfaces}
    return "+".join(sorted(there or {n.switch for n in neighbours}))


def with_lower(interface: str, sys_root: Path = Path("/sys")) -> list[str]:
    """An interface and those below it: the ports of a bond or bridge, what a VLAN is on."""
    names, todo = [], [interface]
    while todo:
        name = todo.pop()
        if name not in names:
            names.append(name)
            folder = sys_root / "class" / "net" / name
            todo += sorted(link.name.removeprefix("lower_") for link in folder.glob("lower_*"))
    return names


def _neighbour(interface: str, seen: JsonObject) -> Neighbour | None:
    chassis, port = seen.get("chassis"), seen.get("port")
    if not isinstance(chassis, dict):
        return None
    name, about = "", chassis
    if not _value(chassis):  # {name: about}. Without a name it is `about` itself
        name, about = next(((n, a) for n, a in chassis.items() if isinstance(a, dict)), ("", {}))
    able = [c for c in _objects(about.get("capability")) if c.get("enabled") is True]
    if "capability" in about and not any(str(c.get("type", "")).lower() in SWITCHES for c in able):
        return None
    switch = _printable(name) or _printable(_value(about))
    return Neighbour(interface=interface, switch=switch, port=_port(port)) if switch else None


def _port(port: object) -> str:
    """The name of a port of the switch. An address is no name, then the description is."""
    if not isinstance(port, dict):
        return ""
    kind = port["id"].get("type") if isinstance(port.get("id"), dict) else ""
    described = str(port.get("descr") or "")
    return _printable((described if kind == "mac" else _value(port)) or described or _value(port))


def _value(holder: JsonObject) -> str:
    """The value of an id, "" where there is none."""
    identity = holder.get("id")
    return str(identity.get("value") or "") if isinstance(identity, dict) else ""


def _objects(value: object) -> Iterator[JsonObject]:
    """The objects of a list, or the one that stands alone."""
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, dict):
            yield cast("JsonObject", item)


def _printable(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:LONGEST_NAME]
