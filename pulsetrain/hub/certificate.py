"""The certificate that a hub shows, read again when its file changes."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import structlog

from pulsetrain.core.errors import UsageError

log = structlog.get_logger()

LOOK_S = 2.0
STALE_S = 30.0

_Seen = tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class CertificateFiles:
    """Certificate and key of a server, in PEM form, and the CA by which clients here check it."""

    certificate: Path
    key: Path
    ca: str = ""

    @classmethod
    def of(cls, certificate: str, key: str = "", ca: str = "") -> CertificateFiles | None:
        """The files that a configuration names, None where it names no certificate.

        Without a key it is the file NAME.key beside NAME.pem, and without a CA ca.pem beside it, if there is
        one: so `pulsetrain ca issue` writes them. Raises `UsageError` for a key or CA without a certificate.
        """
        if not certificate:
            if key or ca:
                raise UsageError(f"{key or ca} is given without a certificate: give --tls-certificate too")
            return None
        path = Path(certificate).expanduser().absolute()
        beside = path.with_name("ca.pem")
        return cls(
            certificate=path,
            key=Path(key).expanduser().absolute() if key else path.with_suffix(".key"),
            ca=str(Path(ca).expanduser().absolute()) if ca else str(beside) if beside.exists() else "",
        )

    def load_into(self, context: ssl.SSLContext) -> None:
        """Raises `UsageError` for files that cannot be read or do not belong together."""
        try:
            context.load_cert_chain(self.certificate, self.key)
        except ssl.SSLError as error:
            what = f"{self.certificate} and {self.key} are no certificate and its key in PEM form"
            raise UsageError(f"{what} ({error.reason or error})") from error
        except OSError as error:
            names = f"certificate {self.certificate} or key {self.key}"
            raise UsageError(f"{names}: {error.strerror}") from error

    def state(self) -> _Seen:
        """Changes whenever one of the files is replaced. Raises `OSError`."""
        stats = (path.stat() for path in (self.certificate, self.key))
        return tuple((each.st_mtime_ns, each.st_ino) for each in stats)


class ServerCertificate:
    """A TLS context of a server whose certificate follows its files. Open connections keep theirs."""

    def __init__(self, files: CertificateFiles) -> None:
        """Raises `UsageError` for files that cannot be used."""
        self.files = files
        self.context = _context(files)
        self._seen = files.state()

    async def turn(self) -> float:
        """Look at the files once."""
        self.look()
        return LOOK_S

    def look(self) -> bool:
        """Take over files that were replaced. Returns whether it did.

        Files that do not fit each other (yet) leave the certificate as it is.
        """
        try:
            seen = self.files.state()
            if seen == self._seen:
                return False
            _context(self.files)  # first: a failed load would leave the live context without a key
            self.files.load_into(self.context)
        except (OSError, UsageError) as error:
            log.warning("certificate_not_read", error=str(error))
            return False
        self._seen = seen
        log.info("certificate_read", file=str(self.files.certificate))
        return True


def _context(files: CertificateFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    files.load_into(context)
    return context
