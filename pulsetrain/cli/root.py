"""The root command, and how commands print."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence

import click

from pulsetrain import __version__
from pulsetrain.cli.extras import EdgeGroup
from pulsetrain.terminal.printable import printable


@click.group(
    cls=EdgeGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=True,
)
@click.version_option(__version__, prog_name="pulsetrain")
def pulsetrain() -> None:
    """Watch a training job, name the fault, heal it.

    Example: pulsetrain run --nproc-per-node 8 train.py
    """
    if os.environ.get("NO_COLOR"):  # https://no-color.org
        click.get_current_context().color = False


def print_json(value: object) -> None:
    """Print `value` as one JSON document on standard output.

    The `evidence` of a finding is an object here, also where the store keeps it as a string. JSON has no NaN
    and no infinity: they are null.
    """
    click.echo(json.dumps(finite(with_evidence(value)), default=str, allow_nan=False))


def finite(value: object) -> object:
    """Return `value` with None for every number in it that is not finite.

    >>> finite({"flops": float("nan"), "steps": [1, 2.5, float("inf")]})
    {'flops': None, 'steps': [1, 2.5, None]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def with_evidence(value: object) -> object:
    """Return `value` with every `evidence` that is a JSON string as the object that it holds.

    A string that is no JSON stays as it is.

    >>> with_evidence([{"kind": "hang", "evidence": '{"victims": [1, 2]}'}])
    [{'kind': 'hang', 'evidence': {'victims': [1, 2]}}]
    """
    if isinstance(value, Mapping):
        return {key: _evidence(v) if key == "evidence" else with_evidence(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [with_evidence(item) for item in value]
    return value


def _evidence(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value or "{}")
    except ValueError:
        return value


def print_table(rows: Sequence[Mapping[str, object]], columns: Sequence[str], empty: str) -> None:
    """Print `rows` as aligned columns, or the sentence `empty` where there are none.

    Cells come from outside: control characters are shown as "?", and each row is one line.
    """
    if not rows:
        click.echo(empty)
        return
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(c) for c in column) for column in zip(columns, *cells, strict=True)]
    for line in (list(columns), *cells):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _cell(value: object) -> str:
    """A value for people: nothing where there is none, and lists without brackets.

    >>> _cell(None), _cell(["rank 0", "rank 3"]), _cell(0)
    ('', 'rank 0, rank 3', '0')
    """
    if value is None:
        return ""
    return printable(", ".join(map(str, value)) if isinstance(value, list | tuple) else value)
