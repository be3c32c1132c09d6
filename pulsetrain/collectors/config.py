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

    sampling_budget_ratio: float = 0.01
    """Share of a core that an agent may use while it samples a suspicious port every millisecond. Where that
    is too little, it pauses in between. 1: no pauses."""

    def __post_init__(self) -> None:
        if not 0 < self.sampling_budget_ratio <= 1:
            allowed = "allowed above 0, up to 1"
            raise ValueError(f"sampling_budget_ratio = {self.sampling_budget_ratio}: {allowed}")

    @property
    def port_names(self) -> tuple[str, ...]:
        """The names in `ports`, each once."""
        return tuple(dict.fromkeys(_NAME.findall(self.ports)))
