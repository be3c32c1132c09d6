"""How `pulsetrain ingest` takes records from Kafka."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class IngestConfig:
    """Table ``[ingest]``, environment ``PULSETRAIN_INGEST_*``."""

    group: str = "pulsetrain"
    """Consumer group. Processes of one group share the partitions."""
    member: str = ""
    """Name of this process in the group. With a stable name a restart gets its partitions back at once."""
    rows: int = 250_000
    """Rows that are stored at once without waiting, 5,000 or more."""
    linger_s: float = 0.5
    """Longest wait for more rows."""
    metrics_host: str = "127.0.0.1"
    """Address that `--metrics-port` listens on. Metrics ask for no password."""
    tls_certificate: str = ""
    """Certificate in PEM form for `--metrics-port`. Empty: metrics are served without TLS."""
    tls_key: str = ""
    """Key of the certificate. Empty: the file NAME.key beside NAME.pem."""
    retry_s: float = 1.0
    """Pause before a failed insert is tried again."""

    def __post_init__(self) -> None:
        if self.rows < 5_000:
            raise ValueError(f"rows = {self.rows}: allowed 5000 or more")
        if not 0 < self.linger_s <= 60:
            raise ValueError(f"linger_s = {self.linger_s}: allowed above 0 to 60")
