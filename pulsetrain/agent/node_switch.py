"""Under which switch this node is. Asked once, when the agent begins.

In this order, and the first that knows counts: the site's file, labels of the Kubernetes node, LLDP. What a
person wrote goes before what a cluster's labels say, and that before what is heard on a cable, because names
of the first two are those that a site uses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import structlog

from pulsetrain.agent import node_labels
from pulsetrain.agent.config import AgentConfig
from pulsetrain.collectors.machine import lldp
from pulsetrain.core.errors import PulsetrainError
from pulsetrain.diagnostics.memory_nodes import interface_of
from pulsetrain.records import network_layout
from pulsetrain.records.network_layout import NetworkLayout

log = structlog.get_logger()

Source = tuple[str, Callable[[], str]]
"""A name for the log, and what asks: "" where it does not know. It may raise `PulsetrainError`."""


def find(node: str, address: str, config: AgentConfig, environ: Mapping[str, str]) -> str:
    """The switch of a node that others reach at `address`, "" where nothing names one."""
    return first(sources(node, address, config, environ))


def sources(node: str, address: str, config: AgentConfig, environ: Mapping[str, str]) -> list[Source]:
    """What is asked, in its order."""
    asked: list[Source] = [
        ("file", lambda: layout(config).switch_of(node)),
        ("kubernetes", lambda: node_labels.switch_of(_labels(node, config, environ), config.switch_label)),
    ]
    if config.lldp:
        interfaces = lldp.with_lower(interface_of(address))
        asked.append(("lldp", lambda: lldp.switch_of(lldp.read(), interfaces)))
    return asked


def first(asked: Sequence[Source]) -> str:
    """What the first source says that knows. One that fails is logged, and the next one is asked."""
    for name, ask in asked:
        try:
            switch = ask()
        except PulsetrainError as error:
            log.warning("switch_source_failed", source=name, error=str(error))
            continue
        if switch:
            log.info("switch", name=switch, source=name)
            return switch
    return ""


def layout(config: AgentConfig) -> NetworkLayout:
    """Which node is under which switch by the site's file. Raises `ConfigError` where it cannot be used."""
    return network_layout.read(Path(config.topology).expanduser()) if config.topology else NetworkLayout()


def _labels(node: str, config: AgentConfig, environ: Mapping[str, str]) -> dict[str, str]:
    if config.labels_file:
        return node_labels.of_file(Path(config.labels_file).expanduser())
    return node_labels.of_api(node, environ)
