"""The page of all configuration keys, `docs/configuration.md`.

It is made from the configuration classes. To write it anew, run
``python -m pulsetrain.cli.config_reference > docs/configuration.md``.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pulsetrain.core.config import config_classes

_INTRODUCTION = """# Configuration

Use a TOML file to change how Pulsetrain behaves:

    pulsetrain serve --config pulsetrain.toml

One file may serve all commands. Each command reads its own tables and ignores the others. A table or key that
no command knows is an error. The error names it. So is a value of another type: numbers stand without quotes,
a whole number has no fraction, and `nan` and `inf` are no numbers.

A value comes from the first of these places that has one:

1. the flag of the command, such as `--port 0`
2. the environment variable `PULSETRAIN_<TABLE>_<KEY>`, such as `PULSETRAIN_HUB_PORT=0`
3. the file
4. the default

`PULSETRAIN_HUB`, `PULSETRAIN_TOKEN` and `PULSETRAIN_DATA` name the hub and the data folder. They are not keys
of a table. `[notify.NAME]`, `[fleet]`, `[recovery]` and `[schedule]` have no environment variables.

This page is made from the source. To make it again, run
`python -m pulsetrain.cli.config_reference > docs/configuration.md`.
"""

_READERS: Mapping[str, str] = MappingProxyType(
    {
        "agent": "The agent of a node. Read by `pulsetrain run` and `pulsetrain agent`.",
        "checkpoint": "Checkpoints and their replicas. Read by `pulsetrain run` and `pulsetrain agent`.",
        "collectors": "What an agent samples. Read by `pulsetrain run` and `pulsetrain agent`.",
        "controller": "What the hub does about faults. Read by `pulsetrain serve`.",
        "fleet": "The plan of a simulation. Read by `pulsetrain simulate fleet`.",
        "hub": "Addresses, store and dashboard of the hub. Read by `pulsetrain serve`.",
        "ingest": "How records go from Kafka into the store. Read by `pulsetrain ingest`.",
        "kafka": "The brokers. Read by `pulsetrain ingest`, `tail`, `run` and `agent`.",
        "notify": "One channel that gets alerts, under a name of your choice. Read by `pulsetrain serve`.",
        "pool": "Devices that several jobs share. Read by `pulsetrain serve`.",
        "recovery": "The plan of a simulation. Read by `pulsetrain simulate recovery`.",
        "schedule": "The plan of a simulation. Read by `pulsetrain simulate schedule`.",
        "scheduler": "Who owns the machines, such as Slurm or Kubernetes. Read by `pulsetrain serve`.",
        "store": "How tables are created. Read by `pulsetrain serve` and `ingest`.",
        "watch": "When silence counts as a hang. Read by `pulsetrain serve`.",
    }
)

_UNITS: Mapping[str, str] = MappingProxyType(
    {
        "_bytes_per_s": "bytes/s",
        "_per_machine_day": "1/day",
        "_per_device_day": "1/day",
        "_bytes": "bytes",
        "_s": "s",
        "_ratio": "0 to 1",
        "_per_hour": "1/hour",
        "_steps": "steps",
        "days": "days",
    }
)


@dataclass(frozen=True, kw_only=True)
class Key:
    """One key of a table. `default` is TOML, "" if the key is required."""

    name: str
    default: str
    unit: str
    meaning: str


def keys(cls: type) -> list[Key]:
    """Return the keys of a configuration class in the order of its fields.

    The meaning is the string under the field, "" where there is none.
    """
    meanings = dict(_meanings(cls))
    return [
        Key(
            name=field.name,
            default="" if field.default is dataclasses.MISSING else _toml(field.default),
            unit=next((unit for suffix, unit in _UNITS.items() if field.name.endswith(suffix)), ""),
            meaning=meanings.get(field.name, ""),
        )
        for field in dataclasses.fields(cls)
    ]


def _meanings(cls: type) -> Iterator[tuple[str, str]]:
    """Yield each field that has a string under it, as (name, sentence)."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            yield field.target.id, _sentence(str(below.value.value))


def _sentence(text: str) -> str:
    """Return a docstring as one line that begins with a capital and ends with a full stop."""
    line = re.sub(r"``(.+?)``", r"`\1`", " ".join(text.split())).replace("|", "\\|")
    return f"{line[:1].upper()}{line[1:]}{'' if line.endswith('.') else '.'}"


def _toml(value: object) -> str:
    """Return a default as TOML."""
    return json.dumps(value)


def page() -> str:
    """Return the page: one section and one table for each table of the file."""
    return "\n".join([_INTRODUCTION, *(_section(table, cls) for table, cls in config_classes().items())])


def _section(table: str, cls: type) -> str:
    title = "notify.NAME" if table == "notify" else table
    rows = [
        f"| `{key.name}` | {f'`{key.default}`' if key.default else 'required'} | {key.unit} | {key.meaning} |"
        for key in keys(cls)
    ]
    head = [
        f"## [{title}]",
        "",
        _READERS[table],
        "",
        "| key | default | unit | meaning |",
        "|---|---|---|---|",
    ]
    return "\n".join([*head, *rows, ""])


if __name__ == "__main__":
    sys.stdout.write(page())
