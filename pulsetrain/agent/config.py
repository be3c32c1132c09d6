"""Configuration of the node agent."""

from __future__ import annotations

from dataclasses import dataclass

LONGEST_HEARTBEAT_S = 60.0
LEAST_LOG_BYTES = 64 << 20
"""The echo and the rules for lines may be 16 MiB behind, and read in the newest half."""


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """Configuration of an agent: table ``[agent]``, environment ``PULSETRAIN_AGENT_*``.

    Raises `ValueError` for a period that is not above 0 or is too long, for too few `log_bytes`, or for other
    `images`.
    """

    watch_s: float = 0.2
    """How often to look for first steps. A rank's end is noticed at once."""
    drain_s: float = 1.5
    """Longest time between two drains of rings to the spool. Rings that fill quickly are drained sooner."""
    echo_s: float = 0.2
    """How often what ranks print is echoed."""
    heartbeat_s: float = 1.0
    """How often to report to the hub, and to sample the host, at most 60. The hub notices a silent node later
    where nodes report less often. GPUs, ports and the kernel's log are read once a second at least."""
    ring_slots: int = 65536
    """Records that a rank may write between two drains. More are dropped and counted."""
    spool_bytes: int = 1 << 30
    """Size of the spool on disk. What does not fit is dropped and counted."""
    log_bytes: int = 4 << 30
    """About what each log file of a rank may take on the disk, at least 64 MiB. 0: no bound. Of a larger one
    the middle is given back: its first MiB and the newest half stay. Zeros are read in between."""
    kill_grace_s: float = -1.0
    """How long ranks may take to end after the signal when the agent itself has to end. Negative: 30 s as
    under torchrun, and 5 s where a checkpoint is to be persisted after that. Schedulers often give 30 s for
    all."""
    persist_at_end_s: float = 20.0
    """How long the newest checkpoint may take to reach storage when a job ends that did not finish.

    Only where the agent has storage. 0: it is lost, up to the last step that was persisted."""
    finish_grace_s: float = 60.0
    """How long to wait for a hub that is away once every rank has ended with status 0."""
    failed_grace_s: float = 600.0
    """How long to wait for a hub that is away once a rank has failed. Then the agent ends with its status."""
    quiet_usage_s: float = 0.7
    """A rank that ends with status 2 and prints nothing is reported this much later, so that the rank that
    prints the reason is reported first."""
    flush_s: float = 5.0
    """How long to go on shipping records at the end, and four times as long while the hub is there and only
    busy. What is left stays in the spool."""
    topology: str = ""
    """File that says under which switch each node is: Slurm's topology.conf, or TOML if its name ends so."""
    switch_label: str = ""
    """Label of the Kubernetes node that names its switch. Empty: the well-known ones."""
    labels_file: str = ""
    """File with labels of the node, as a downwardAPI volume writes labels or annotations. Empty: the API is
    asked, where a service account is mounted."""
    lldp: bool = True
    """Whether lldpd is asked for the switch where neither a file nor a label names it."""
    log_rules: str = ""
    """TOML file with the site's rules for log lines, tried on each line as it is read. None by default."""
    images: str = "never"
    """Whether a pre-emption dumps the ranks' processes, where the host can and nothing else saves each step:
    auto or never. Not together with `squash`. Experimental. An image rests in the node's data folder."""
    ca_certificate: str = ""
    """CA by which the agent checks a hub whose address begins with https://. Empty: PULSETRAIN_CA, else
    those that the system knows."""
    import_timeout_s: float = 180.0
    """How long the zygote may take to import torch and the modules to preload."""
    squash: bool = False
    """Whether data-parallel ranks that take turns on one device compute an optimizer's update once. Only
    optimizers of torch.optim, on processors."""
    squash_compare_steps: int = 100
    """After so many updates all ranks of a device compute one, and compare what it reads and writes."""

    def __post_init__(self) -> None:
        if self.images not in ("auto", "never"):
            raise ValueError(f"images = {self.images!r}: allowed: auto, never")
        if self.log_bytes and self.log_bytes < LEAST_LOG_BYTES:
            raise ValueError(f"log_bytes = {self.log_bytes}: allowed: 0, or at least {LEAST_LOG_BYTES}")
        if self.squash_compare_steps < 1:
            raise ValueError(f"squash_compare_steps = {self.squash_compare_steps}: must be above 0")
        for name in ("watch_s", "drain_s", "echo_s", "heartbeat_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} = {getattr(self, name)}: must be above 0")
        if self.heartbeat_s > LONGEST_HEARTBEAT_S:
            raise ValueError(f"heartbeat_s = {self.heartbeat_s}: at most {LONGEST_HEARTBEAT_S}")
