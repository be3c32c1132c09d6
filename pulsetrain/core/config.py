"""Configuration: frozen dataclasses filled from one TOML file, the environment and flags, in that order.

Each component keeps its own dataclass beside itself. This module only fills one. A table in the file has the
component's name (``[agent]``). An environment variable is ``PULSETRAIN_<COMPONENT>_<KEY>``. An unknown key is
an error that names the key and what is allowed. `CONFIG_CLASSES` lists every table.
"""

from __future__ import annotations

import dataclasses
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


def config_classes() -> dict[str, type]:
    """The dataclass of every table. Imports their modules, so only tests and documentation should call it."""
    return {table: pkgutil.resolve_name(name) for table, name in CONFIG_CLASSES.items()}


def read_toml(path: Path) -> JsonObject:
    """The parsed file. Raises `ConfigError` if it is missing, is not TOML, or has an unknown table."""
    tables = _parse(path)
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
    values = _from_file(component, allowed, (file or {}).get(component, {}))
    prefix = f"PULSETRAIN_{component.upper()}_"
    for name, text in (environ or {}).items():
        if name.startswith(prefix) and name[len(prefix) :].lower() in allowed:
            values[name[len(prefix) :].lower()] = text
    values.update({k: v for k, v in (flags or {}).items() if v is not None})
    try:
        return cls(**{k: _convert(hints[k], v, f"{component}.{k}") for k, v in values.items()})
    except ValueError as error:
        raise ConfigError(f"{component}: {error}") from error


def _from_file(component: str, allowed: list[str], table: object) -> dict[str, object]:
    if not isinstance(table, Mapping):
        raise ConfigError(f"{component} = {table!r}: not a table; write [{component}]")
    unknown = sorted(table.keys() - set(allowed))
    if unknown:
        raise ConfigError(f"unknown key {component}.{unknown[0]}; allowed: {', '.join(sorted(allowed))}")
    return dict(table)


def _convert(annotation: object, value: object, path: str) -> object:
    """`value` as the annotated scalar type. Text from the environment is parsed."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        annotation = next(a for a in typing.get_args(annotation) if a is not type(None))
    if annotation is bool and isinstance(value, str):
        if value.lower() not in _BOOLEANS:
            raise ConfigError(f"{path} = {value!r}: not a boolean; allowed: true, false")
        return _BOOLEANS[value.lower()]
    if annotation in (int, float, str, Path) and not isinstance(value, bool):
        return _parse_scalar(typing.cast("type", annotation), value, path)
    confused = isinstance(value, bool) != (annotation is bool)  # for Python a bool is an int
    if isinstance(annotation, type) and (confused or not isinstance(value, annotation)):
        raise ConfigError(f"{path} = {value!r}: not {_with_article(annotation.__name__)}")
    return value


def _parse_scalar(kind: type, value: object, path: str) -> object:
    try:
        return kind(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path} = {value!r}: not {_with_article(kind.__name__)}") from error


def _with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
