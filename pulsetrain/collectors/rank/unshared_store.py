"""Where ranks meet if they do not want to share the agent's store.

`TORCH_DISABLE_SHARE_RDZV_TCP_STORE` set to 1 says so, to torchrun too: rank 0 hosts a store of its own, at a
port that nobody else uses. Frameworks that serve something else at `MASTER_PORT` need it.
"""

from __future__ import annotations

import socket
from collections.abc import MutableMapping
from datetime import timedelta

SWITCH = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
PATIENCE = timedelta(minutes=30)
"""For rank 0, whose node may restore its state first. As long as a process group waits for its ranks."""
_KEY = "pulsetrain/master"


def leave_agents_store(environ: MutableMapping[str, str]) -> None:
    """Replace the agent's store in a rank's environment, if that says so.

    Rank 0 picks a free port of its machine. The others learn of it by the agent's store, and wait for that.
    Raises torch's errors of a store that is not reached.
    """
    if environ.get(SWITCH, "0") != "1":
        return
    from torch.distributed import TCPStore

    address, port = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
    store = TCPStore(address, port, is_master=False, timeout=PATIENCE)
    if environ["RANK"] == "0":
        store.set(_KEY, f"{environ['PULSETRAIN_ADDRESS']} {_free_port()}")
    environ["MASTER_ADDR"], environ["MASTER_PORT"] = store.get(_KEY).decode().split()
    environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"


def _free_port() -> int:
    """Return a port that nobody uses now, for any protocol of the internet."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.create_server(("", 0), family=family, dualstack_ipv6=family == socket.AF_INET6) as server:
        return int(server.getsockname()[1])
