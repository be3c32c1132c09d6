"""How a hub is set up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class HubConfig:
    """Table ``[hub]``, environment ``PULSETRAIN_HUB_*``, flags of ``pulsetrain serve``."""

    host: str = "127.0.0.1"
    """Address to listen on. Every route but /ping and /v1/leader asks for the token, on loopback
    too."""
    port: int = 8780
    """Port of the API, ingest and query routes. 0 takes a free one."""
    dashboard_port: int = 8790
    """Port of the dashboard, always on loopback. 0 takes a free one."""
    dashboard: bool = True
    """Start the dashboard as a child."""
    dashboard_hosts: str = ""
    """Names under which browsers reach the dashboard (``dash.example.org,*.cluster``) besides localhost,
    addresses, and the name of the machine. Empty: any name over TLS, or behind a proxy that sends
    X-Forwarded-For."""
    token: str = ""
    """Token that clients must send. Empty: one is made and kept in the data folder."""
    store: str = ""
    """Store URL. Empty: ``chdb://`` in the data folder. ``http(s)://`` for a ClickHouse server."""

    kafka: str = ""
    """Brokers (host:port,...) to take records from as well. Empty: records come over HTTP alone."""

    tls_certificate: str = ""
    """Certificate in PEM form that the hub and its dashboard show: they speak TLS then. Empty: they do not.
    Replacing the file is enough, the hub reads it again."""
    tls_key: str = ""
    """Key of the certificate. Empty: the file NAME.key beside NAME.pem."""
    ca_certificate: str = ""
    """CA by which the dashboard and commands on this machine check the hub. Empty: ca.pem beside the
    certificate, or those that the system knows. Elsewhere the environment variable PULSETRAIN_CA says it."""

    kv: str = ""
    """What keeps what must outlive this hub, ``etcd://host:port,...`` or ``kubernetes://NAMESPACE``: one of
    several hubs leads. Empty: this hub is alone and keeps it in the data folder."""

    rendezvous: str = "auto"
    """Where the ranks of a job of several nodes meet. ``hub``: at a store beside the hub, so that no node
    hosts it. ``node``: at a store of the first node, the one of rank 0. Scripts that listen on MASTER_ADDR
    themselves need it. ``auto``: ``hub`` if the hub listens beyond loopback, else ``node``."""

    device: str = ""
    """What all ranks run on, as DEVICE/DTYPE of the table of peaks, for the MFU. Empty: the GPUs that their
    agents report, and the data type that training on them usually computes in."""

    policies: str = ""
    """Folder with a site's own rows of hardware_policy.toml, xid.csv, sxid.csv and kernel_rules.toml: what is
    done about trouble of a machine. Empty: the tables of this version."""

    def __post_init__(self) -> None:
        for name in ("port", "dashboard_port"):
            if not 0 <= getattr(self, name) <= 65535:
                raise ValueError(f"{name} = {getattr(self, name)}: allowed 0 to 65535")
        if self.rendezvous not in ("auto", "hub", "node"):
            raise ValueError(f"rendezvous = {self.rendezvous!r}: allowed auto, hub, node")
