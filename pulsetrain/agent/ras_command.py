"""Asks the NCCL RAS of this node's ranks, and sends what it says to the hub in little space."""

from __future__ import annotations

from collections.abc import Mapping

from pulsetrain.collectors.machine import ras_client
from pulsetrain.core.errors import PulsetrainError
from pulsetrain.core.json import JsonObject
from pulsetrain.protocol.messages import ReadRas


def run(command: ReadRas, environ: Mapping[str, str]) -> JsonObject:
    """{"report": ...} as `ReadRas` says, or {"why_not": one line}. `environ` is that of the ranks."""
    from pulsetrain.analytics.hangs import ras, ras_lag  # late: few agents are ever asked

    try:
        text = ras_client.ask(ras_client.address_of(environ), limit_s=command.limit_s)
        return {"report": ras_lag.pack(ras.parse(text))}
    except PulsetrainError as error:
        return {"why_not": str(error)}
