"""Configuration: frozen dataclasses filled from one TOML file, the environment and flags, in that order.

Each component keeps its own dataclass beside itself. This module only fills one. A table in the file has the
component's name (``[agent]``). An environment variable is ``PULSETRAIN_<COMPONENT>_<KEY>``. An unknown key is
an error that names the key and what is allowed. `CONFIG_CLASSES` lists every table.
"""

from __future__ import annotations

import dataclasses
import math
import pkgutil
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from pulsetrain.core.errors import ConfigError
from pulsetrain.core.json import JsonObject

T = TypeVar("T")

CONFIG_CLASSES: Mapping[str, str] = MappingProxyType(
    {
        "agent": "pulsetrain.agent.supervise:AgentConfig",
        "checkpoint": "pulsetrain.checkpoint.service_config:CheckpointServiceConfig",
        "collectors": "pulsetrain.collectors.config:CollectorConfig",
        "controller": "pulsetrain.recovery.policy:Policy",
        "fleet": "pulsetrain.simulate.fleet_plan:FleetPlan",
        "hub": "pulsetrain.hub.config:HubConfig",
        "ingest": "pulsetrain.stream.kafka.ingest_config:IngestConfig",
        "kafka": "pulsetrain.stream.kafka.client:KafkaConfig",
        "notify": "pulsetrain.analytics.incidents.notify:ChannelConfig",
        "pool": "pulsetrain.recovery.pool.config:PoolConfig",
        "recovery": "pulsetrain.simulate.recovery_plan:RecoveryPlan",
        "schedule": "pulsetrain.simulate.schedule_plan:SchedulePlan",
        "scheduler": "pulsetrain.recovery.scheduler:SchedulerConfig",
        "store": "pulsetrain.records.ddl:Engine",
        "watch": "pulsetrain.analytics.watch:WatchConfig",
    }
)
"""The tables of a configuration file and the dataclass of each, as ``module:Class``.

One file may serve all processes: each process reads the tables that are its own. A table ``[notify.NAME]``
describes one channel, so that `ChannelConfig` documents the keys below the name.
"""

_BOOLEANS: Mapping[str, bool] = {
    "true": True,
    "1": True,
    "yes": True,
    "false": False,
    "0": False,
    "no": False,
}

_NOUNS: Mapping[type, str] = {
    bool: "a boolean; allowed: true, false",
    float: "a number",
    int: "a whole number",
    str: "a string",
    Path: "a path",
}


def config_classes() -> dict[str, type]:
    """The dataclass of every table. Imports their modules, so only tests and documentation should call it."""
    return {table: pkgutil.resolve_name(name) for table, name in CONFIG_CLASSES.items()}


class Tables(dict[str, typing.Any]):
    """The tables of one file. `path` is named where a value in them cannot be used."""

    path: Path | None = None


def read_toml(path: Path) -> JsonObject:
    """The parsed file. Raises `ConfigError` if it is missing, is not TOML, or has an unknown table."""
    tables = Tables(_parse(path))
    tables.path = path
    unknown = sorted(tables.keys() - CONFIG_CLASSES.keys())
    if unknown:
        raise ConfigError(f"unknown table [{unknown[0]}] in {path}; allowed: {', '.join(CONFIG_CLASSES)}")
    return tables


def _parse(path: Path) -> JsonObject:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"configuration file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {path}: {error}") from error


@dataclasses.dataclass(frozen=True)
class _Given:
    """A value, and where it comes from: "FILE: " or "VARIABLE: ", "" for a flag. `text` may need parsing."""

    value: object
    place: str = ""
    text: bool = False


def load(
    cls: type[T],
    component: str,
    *,
    file: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> T:
    """An instance of dataclass `cls`. A flag that is None was not given. Raises `ConfigError`."""
    hints = typing.get_type_hints(cls)
    allowed = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]  # T is a dataclass by contract
    given = _from_file(component, allowed, file or {})
    prefix = f"PULSETRAIN_{component.upper()}_"
    for name, text in (environ or {}).items():
        if name.startswith(prefix) and name[len(prefix) :].lower() in allowed:
            given[name[len(prefix) :].lower()] = _Given(text, f"{name}: ", text=True)
    given.update({k: _Given(v, text=isinstance(v, str)) for k, v in (flags or {}).items() if v is not None})
    values = {k: _convert(hints[k], v, f"{v.place}{component}.{k}") for k, v in given.items()}
    try:
        return cls(**values)
    except ValueError as error:
        named = given.get(str(error).partition(" ")[0])  # the message begins with the key
        raise ConfigError(f"{named.place if named else ''}{component}: {error}") from error


def _from_file(component: str, allowed: list[str], file: Mapping[str, object]) -> dict[str, _Given]:
    table = file.get(component, {})
    place = f"{file.path}: " if isinstance(file, Tables) else ""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{place}{component} = {table!r}: not a table; write [{component}]")
    unknown = sorted(table.keys() - set(allowed))
    if unknown:
        known = ", ".join(sorted(allowed))
        raise ConfigError(f"{place}unknown key {component}.{unknown[0]}; allowed: {known}")
    return {key: _Given(value, place) for key, value in table.items()}


def _convert(annotation: object, given: _Given, path: str) -> object:
    """The value as the annotated scalar type. Text from the environment is parsed."""
    value = given.value
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        annotation = next(a for a in typing.get_args(annotation) if a is not type(None))
    if annotation is bool and given.text:
        return _parse_boolean(str(value), path)
    if annotation in (int, float) and (given.text or isinstance(value, int | float)):
        return _parse_number(annotation, value, path)
    if annotation is Path and isinstance(value, str):
        return Path(value)
    if annotation is str and type(value) is int:  # a name of digits alone
        return str(value)
    confused = isinstance(value, bool) != (annotation is bool)  # for Python a bool is an int
    if isinstance(annotation, type) and (confused or not isinstance(value, annotation)):
        raise ConfigError(f"{path} = {value!r}: not {_NOUNS.get(annotation, annotation.__name__)}")
    return value


def _parse_boolean(text: str, path: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise ConfigError(f"{path} = {text!r}: not a boolean; allowed: true, false")
    return _BOOLEANS[text.lower()]


def _parse_number(kind: type[int | float], value: typing.Any, path: str) -> int | float:
    """A whole number may be written as 1e9, as text too. Nothing else is rounded."""
    try:
        number = kind(value)
    except (ValueError, OverflowError):
        number = _whole(value) if kind is int else math.nan
    if isinstance(value, bool) or not math.isfinite(number) or (type(value) is float and number != value):
        raise ConfigError(f"{path} = {value!r}: not {_NOUNS[kind]}")
    return number


def _whole(value: object) -> int | float:
    """The whole number that a text such as "1e9" writes, else NaN."""
    try:
        number = float(value) if isinstance(value, str) else math.nan
    except ValueError:
        return math.nan
    return int(number) if number.is_integer() else math.nan
