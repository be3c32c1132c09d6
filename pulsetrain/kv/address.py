"""Where a key-value store is: ``etcd://host:port,...``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

from pulsetrain.core.errors import UsageError
from pulsetrain.core.urls import split_url

PORT = 2379
SCHEMES: Mapping[str, str] = {"etcd": "http", "etcds": "https"}
OPTIONS = ("ca", "cert", "key")
USER, PASSWORD = "PULSETRAIN_ETCD_USER", "PULSETRAIN_ETCD_PASSWORD"


@dataclass(frozen=True, kw_only=True)
class EtcdAddress:
    """`endpoints` are URLs. `ca`, `cert` and `key` are files, "" for the system's authorities and for no
    certificate of our own. The password is in no text that this class gives out."""

    endpoints: tuple[str, ...]
    user: str = ""
    password: str = field(default="", repr=False)
    ca: str = ""
    cert: str = ""
    key: str = ""

    def __str__(self) -> str:
        """The endpoints, without user and password."""
        return ",".join(self.endpoints)


def parse(url: str, environ: Mapping[str, str]) -> EtcdAddress:
    """The address in `url`. User and password may be in the environment instead.

    Raises `UsageError` which never shows the part before the @.

    >>> str(parse("etcd://root:secret@a,b:4001", {}))
    'http://a:2379,http://b:4001'
    """
    parts = split_url(url, "--kv", one_host=False)
    credentials, _, hosts = parts.netloc.rpartition("@")
    shown = f"{parts.scheme}://{hosts}"
    if parts.scheme not in SCHEMES:
        raise UsageError(
            f"--kv {shown}: allowed etcd://host:port,..., etcds://... and kubernetes://NAMESPACE"
        )
    if parts.path not in ("", "/"):
        raise UsageError(f"--kv {shown}: nothing may follow the hosts but ?ca=FILE&cert=FILE&key=FILE")
    options = parse_qs(parts.query)
    unknown = sorted(options.keys() - set(OPTIONS))
    if unknown:
        raise UsageError(f"--kv {shown}: unknown option {unknown[0]!r}; allowed: {', '.join(OPTIONS)}")
    files = {name: values[-1] for name, values in options.items()}
    if bool(files.get("cert")) != bool(files.get("key")):
        raise UsageError(f"--kv {shown}: cert and key belong together")
    if files and parts.scheme != "etcds":
        raise UsageError(f"--kv {shown}: certificates need etcds://")
    user, _, password = credentials.partition(":")
    return EtcdAddress(
        endpoints=tuple(f"{SCHEMES[parts.scheme]}://{_host(host, shown)}" for host in hosts.split(",")),
        user=unquote(user) or environ.get(USER, ""),
        password=unquote(password) or environ.get(PASSWORD, ""),
        **files,
    )


def _host(text: str, shown: str) -> str:
    """``host:port`` of one member."""
    try:
        parsed = urlsplit(f"//{text}")
        host, port = parsed.hostname, parsed.port
    except ValueError as error:
        raise UsageError(f"--kv {shown}: {text!r} is no valid host and port") from error
    if not host:
        raise UsageError(f"--kv {shown}: a host is missing")
    return f"[{host}]:{port or PORT}" if ":" in host else f"{host}:{port or PORT}"
