"""Configuration: frozen dataclasses filled from one TOML file, the environment and flags, in that order.

Each component keeps its own dataclass beside itself; this module only fills one. A table in the file has the
component's name (``[agent]``), an environment variable is ``PULSETRAIN_<COMPONENT>_<KEY>``, and a key that
the dataclass does not have is an error that names it and what is allowed.
"""

from __future__ import annotations

import dataclasses
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pulsetrain.core.errors import ConfigError

T = TypeVar("T")

_SCALARS: Mapping[str, bool] = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


TABLES = ("agent", "checkpoint", "controller", "hub", "ingest", "kafka", "notify", "recovery", "watch")
"""Of all processes: one file may serve them all, and each reads the tables that are its own."""


def read_toml(path: Path) -> dict[str, Any]:
    """The parsed file. Raises `ConfigError` where it is missing, no TOML, or has a table nobody reads."""
    tables = _parsed(path)
    unknown = sorted(tables.keys() - set(TABLES))
    if unknown:
        raise ConfigError(f"unknown table [{unknown[0]}] in {path}; allowed: {', '.join(TABLES)}")
    return tables


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"configuration file {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"configuration file {path}: {error}") from error


def load(
    cls: type[T],
    component: str,
    *,
    file: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> T:
    """An instance of dataclass `cls`; a flag that is None was not given. Raises `ConfigError`."""
    hints = typing.get_type_hints(cls)
    allowed = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]  # T is a dataclass by contract
    values: dict[str, Any] = {}
    for key, value in dict((file or {}).get(component, {})).items():
        if key not in allowed:
            raise ConfigError(f"unknown key {component}.{key}; allowed: {', '.join(sorted(allowed))}")
        values[key] = value
    prefix = f"PULSETRAIN_{component.upper()}_"
    for name, text in (environ or {}).items():
        if name.startswith(prefix) and name[len(prefix) :].lower() in allowed:
            values[name[len(prefix) :].lower()] = text
    values.update({k: v for k, v in (flags or {}).items() if v is not None})
    try:
        return cls(**{k: _coerce(hints[k], v, f"{component}.{k}") for k, v in values.items()})
    except ValueError as error:
        raise ConfigError(f"{component}: {error}") from error


def _coerce(annotation: Any, value: Any, path: str) -> Any:
    """`value` as the annotated scalar type; text from the environment is parsed."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        annotation = next(a for a in typing.get_args(annotation) if a is not type(None))
    if annotation is bool and isinstance(value, str):
        if value.lower() not in _SCALARS:
            raise ConfigError(f"{path} = {value!r}: not a boolean; allowed: true, false")
        return _SCALARS[value.lower()]
    if annotation in (int, float, str, Path) and not isinstance(value, bool):
        try:
            return annotation(value)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{path} = {value!r}: not {_article(annotation.__name__)}") from error
    if isinstance(annotation, type) and not isinstance(value, annotation):
        raise ConfigError(f"{path} = {value!r}: not {_article(annotation.__name__)}")
    return value


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
