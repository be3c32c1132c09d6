"""All configuration of a hub from one TOML file, the environment and flags."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pulsetrain.analytics.incidents.notify import Channel, channels
from pulsetrain.analytics.watch import WatchConfig
from pulsetrain.core.config import load, read_toml
from pulsetrain.core.errors import ConfigError
from pulsetrain.hub.config import HubConfig
from pulsetrain.records.ddl import Engine
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.pool.config import PoolConfig
from pulsetrain.recovery.scheduler import SchedulerConfig

NOTIFY = "notify"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One configuration for each part."""

    hub: HubConfig
    policy: Policy
    watch: WatchConfig
    channels: Mapping[str, Channel]
    store: Engine = field(default_factory=Engine)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    pool: PoolConfig = field(default_factory=PoolConfig)


def load_settings(
    path: Path | None,
    hub: Mapping[str, object],
    policy: Mapping[str, object],
    environ: Mapping[str, str] = os.environ,
) -> Settings:
    """Fill every table. Raises `ConfigError` for an unknown table, key or value."""
    file = read_toml(path) if path else {}
    notify = file.get(NOTIFY, {})
    if not isinstance(notify, Mapping):
        raise ConfigError(f"{path}: {NOTIFY} = {notify!r}: not a table; write [{NOTIFY}.NAME]")
    return Settings(
        hub=load(HubConfig, "hub", file=file, environ=environ, flags=hub),
        policy=load(Policy, "controller", file=file, environ=environ, flags=policy),
        watch=load(WatchConfig, "watch", file=file, environ=environ),
        channels=channels(notify),
        store=load(Engine, "store", file=file, environ=environ),
        scheduler=load(SchedulerConfig, "scheduler", file=file, environ=environ),
        pool=load(PoolConfig, "pool", file=file, environ=environ),
    )
