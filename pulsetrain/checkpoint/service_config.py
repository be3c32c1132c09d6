"""How an agent keeps checkpoints: table [checkpoint] of the configuration file."""

from __future__ import annotations

from dataclasses import dataclass

from pulsetrain.checkpoint.peers.placement import ACROSS, STRATEGIES
from pulsetrain.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class CheckpointServiceConfig:
    """Table [checkpoint] of the configuration file."""

    token: str = ""
    """What agents prove to each other that they have and never send, until the hub gives them a key."""
    port: int = 0
    """TCP port for peers. 0: any free one."""
    replicas: int = 2
    """Copies of each checkpoint in memory, the rank's own node included. 1: no peers."""
    placement: str = "mixed"
    """Which nodes hold whose replicas: ring, mixed, group, or across.

    across: outside every parallel group of the rank, so that the eviction of a whole group loses nothing. It
    needs tp, pp and dp."""
    tp: int = 0
    """Tensor-parallel ranks, which have neighbouring numbers. For placement = across."""
    pp: int = 0
    """Pipeline stages. For placement = across."""
    dp: int = 0
    """Data-parallel replicas. For placement = across."""
    sending: str = "interleaved"
    """When replicas go to peers: interleaved (in the idle spans of training's own traffic) or at_once."""
    share_equal: bool = True
    """Do not send blocks that a rank of the peer's node has saved for the same step.

    Data-parallel ranks have most of their state in common."""
    chunk_bytes: int = 16 << 20
    """Largest piece of a replica that is sent in one go when interleaved."""
    lag_steps: int = 0
    """Steps that training may be ahead of what its peers hold before it waits for them. 0: it never waits.

    With 1, the loss of a node costs one step at most. Above 0, replicas are sent at once."""
    profile_steps: int = 20
    """Steps from which idle network spans are learnt. 0: never."""
    poll_s: float = 0.025
    """How often arenas are checked for new checkpoints, where one is due. Else every 0.25 s."""
    peer_timeout_s: float = 5.0
    """A peer that sends or receives no byte for this time, is away. While it works, it says so."""
    storage: str = ""
    """Folder or fsspec URL where checkpoints are persisted, the same for all nodes. Empty: nowhere."""
    persist_every: int = 100
    """Steps that are a multiple of this are persisted. 0: only those that the script asks for."""
    commit_timeout_s: float = 60.0
    """A step whose ranks are not all persisted after this time, is abandoned."""
    bandwidth_bytes_per_s: float = 0.0
    """Limit for writing to storage, for each node. 0: none."""
    keep_last: int = 2
    """How many of the newest committed steps are kept, at least 2."""
    keep_every: int = 0
    """Committed steps that are a multiple of this are never removed. 0: none."""

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise ConfigError(f"checkpoint.replicas = {self.replicas}: allowed: 1 or more")
        allowed = (*sorted(STRATEGIES), ACROSS)
        if self.placement not in allowed:
            raise ConfigError(f"checkpoint.placement = {self.placement!r}: allowed: {', '.join(allowed)}")
        if self.placement == ACROSS:
            self._check_across()
        if self.sending not in SENDING:
            raise ConfigError(f"checkpoint.sending = {self.sending!r}: allowed: {', '.join(SENDING)}")
        if self.chunk_bytes < 1 or min(self.profile_steps, self.lag_steps) < 0:
            raise ConfigError("checkpoint: chunk_bytes: from 1; profile_steps and lag_steps: from 0")
        if self.keep_last < 2:
            raise ConfigError(f"checkpoint.keep_last = {self.keep_last}: allowed: 2 or more")
        if self.persist_every < 0 or self.keep_every < 0 or self.bandwidth_bytes_per_s < 0:
            raise ConfigError(
                "checkpoint: persist_every, keep_every and bandwidth_bytes_per_s: allowed: 0 or more"
            )
        if min(self.poll_s, self.peer_timeout_s, self.commit_timeout_s) <= 0:
            raise ConfigError("checkpoint: poll_s, peer_timeout_s and commit_timeout_s: allowed: above 0")

    def _check_across(self) -> None:
        if min(self.tp, self.pp, self.dp) < 1 or sum(n > 1 for n in (self.tp, self.pp, self.dp)) < 2:
            sizes = f"tp = {self.tp}, pp = {self.pp}, dp = {self.dp}"
            raise ConfigError(f"checkpoint.placement = 'across' with {sizes}: allowed: two of them above 1")


SENDING = ("interleaved", "at_once")
