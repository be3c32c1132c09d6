"""Configuration of what agents sample."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(r"[^\s,]+")


@dataclass(frozen=True, kw_only=True)
class CollectorConfig:
    """Configuration of the collectors of an agent: table ``[collectors]``, environment
    ``PULSETRAIN_COLLECTORS_*``.
    """

    ports: str = ""
    """Ports that carry the traffic of the job, separated by commas, such as eth0,mlx5_0/1. An RDMA port is
    named by card and port number. Only these are asked whether the traffic stopped. Empty: RDMA ports, else
    interfaces with hardware, with a default route, or that GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME name."""

    @property
    def port_names(self) -> tuple[str, ...]:
        """The names in `ports`, each once."""
        return tuple(dict.fromkeys(_NAME.findall(self.ports)))
