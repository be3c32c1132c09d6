"""Where the Kubernetes API is, and who we are there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pulsetrain.core.errors import UsageError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
URL = "PULSETRAIN_KUBERNETES_API"
NAMESPACE = "PULSETRAIN_KUBERNETES_NAMESPACE"


@dataclass(frozen=True, kw_only=True)
class ApiAccess:
    """The API's URL and the namespace that is ours. The files are read again whenever they have changed.

    `token_file` and `ca_file` are None for no token, and for the authorities that the system knows.
    """

    url: str
    namespace: str
    token_file: Path | None = None
    ca_file: Path | None = None

    def token(self) -> str:
        """The token as it is now, "" for none. The kubelet replaces it. Raises `UsageError`."""
        return "" if self.token_file is None else _read(self.token_file)


def find_api(environ: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> ApiAccess:
    """The API of the cluster that this pod is in, or the one that `PULSETRAIN_KUBERNETES_API` names.

    `folder` is where the kubelet mounts the service account. Raises `UsageError` where there is none.

    >>> find_api({"PULSETRAIN_KUBERNETES_API": "http://127.0.0.1:8001/"}, Path("/nowhere"))
    ApiAccess(url='http://127.0.0.1:8001', namespace='default', token_file=None, ca_file=None)
    """
    token, ca = folder / "token", folder / "ca.crt"
    url = environ.get(URL, "").rstrip("/")
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not url:
        if not host or not token.exists():
            raise UsageError(
                f"no Kubernetes API: run in a pod whose service account is mounted, or set {URL}, "
                "for example to http://127.0.0.1:8001 beside `kubectl proxy`"
            )
        url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"{URL}={url}: allowed http://host:port and https://host:port")
    secure = url.startswith("https://")
    return ApiAccess(
        url=url,
        namespace=environ.get(NAMESPACE, "") or _namespace(folder / "namespace"),
        token_file=token if secure and token.exists() else None,
        ca_file=ca if secure and ca.exists() else None,
    )


def _namespace(path: Path) -> str:
    return _read(path) if path.exists() else "default"


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or 'not text'}") from error
