"""A private certificate authority in one folder: for a cluster whose machines no public CA knows.

The folder holds ca.pem and ca.key, and NAME.pem and NAME.key for each certificate. Keys are readable by their
owner alone. Hubs and clients need ca.pem, and each server its own two files. ca.key is needed to issue only.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pulsetrain.core.errors import CorruptData, UsageError
from pulsetrain.core.private_file import replace_private

CA = "ca"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_HOST = re.compile(
    r"(\*\.)?([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.)*[A-Za-z0-9_]([A-Za-z0-9_-]{0,61})"
)
_LONGEST_HOST = 253
_SKEW = timedelta(minutes=5)  # clocks of machines differ


@dataclass(frozen=True, kw_only=True)
class Issued:
    """One certificate of the folder. `hosts` are names and addresses for which it is good, none for a CA."""

    name: str
    certificate: Path
    hosts: tuple[str, ...]
    expires: datetime

    def days_left(self, now: datetime) -> float:
        """Days until it ends, below 0 once it has."""
        return (self.expires - now) / timedelta(days=1)


class PrivateCa:
    """The authority in `folder`. All methods raise `UsageError` for what cannot be done."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def create(self, *, now: datetime, days: float) -> Issued:
        """Make a new authority. One that is there is never overwritten."""
        certificate, key = _files(self.folder, CA)
        if certificate.exists() or key.exists():
            raise UsageError(f"{self.folder} holds a CA already: choose another folder")
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise UsageError(f"folder {self.folder}: {error.strerror}") from error
        private = ec.generate_private_key(ec.SECP256R1())
        serial = x509.random_serial_number()
        name = x509.Name(
            [x509.NameAttribute(NameOID.COMMON_NAME, f"Pulsetrain private CA {serial % 10**6:06}")]
        )
        usage = _usage(key_cert_sign=True, crl_sign=True)
        builder = (
            _builder(name, name, private.public_key(), serial, now=now, days=days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
        )
        return self._write(CA, builder.sign(private, hashes.SHA256()), private)

    def issue(self, name: str, hosts: Sequence[str], *, now: datetime, days: float) -> Issued:
        """Make a certificate for these host names and addresses, and for loopback.

        It replaces one of that name, and never outlives the authority.
        """
        if not _NAME.fullmatch(name) or name == CA:
            raise UsageError(
                f"certificate name {name!r}: allowed are letters, digits, dots, - and _, not {CA!r}"
            )
        authority, authority_key = self._authority()
        left = (authority.not_valid_after_utc - now) / timedelta(days=1)
        if left <= 0:
            raise UsageError(f"the CA in {self.folder} has expired: create a new one")
        private = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([_host(host) for host in dict.fromkeys((*hosts, *LOOPBACK))])
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        serial = x509.random_serial_number()
        signer = authority_key.public_key()
        builder = (
            _builder(subject, authority.subject, private.public_key(), serial, now=now, days=min(days, left))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
            .add_extension(names, critical=False)
        )
        return self._write(name, builder.sign(authority_key, hashes.SHA256()), private)

    def issued(self) -> list[Issued]:
        """All certificates, the authority's own first. Raises `CorruptData` for a file that is none."""
        if not _files(self.folder, CA)[0].exists():
            raise UsageError(f"no CA in {self.folder}: make one with `pulsetrain ca create {self.folder}`")
        paths = sorted(self.folder.glob("*.pem"), key=lambda path: (path.stem != CA, path.stem))
        return [_described(path.stem, path, _certificate(path)) for path in paths]

    def _authority(self) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        certificate, key = _files(self.folder, CA)
        self.issued()
        try:
            private = serialization.load_pem_private_key(key.read_bytes(), password=None)
        except OSError as error:
            raise UsageError(f"key of the CA {key}: {error.strerror}") from error
        except (ValueError, TypeError) as error:
            raise CorruptData(f"{key} is no private key: {error}") from error
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise CorruptData(f"{key} is no key that `pulsetrain ca create` wrote")
        return _certificate(certificate), private

    def _write(self, name: str, certificate: x509.Certificate, private: ec.EllipticCurvePrivateKey) -> Issued:
        path, key = _files(self.folder, name)
        text = private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        try:
            replace_private(key, text.decode())
            replace_private(path, certificate.public_bytes(serialization.Encoding.PEM).decode())
            path.chmod(0o644)
        except OSError as error:
            raise UsageError(f"folder {self.folder}: {error.strerror}") from error
        return _described(name, path, certificate)


def _files(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.pem", folder / f"{name}.key"


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise UsageError(f"certificate {path}: {error.strerror}") from error
    except ValueError as error:
        raise CorruptData(f"{path} is no certificate: {str(error)[:80]}") from error


def _described(name: str, path: Path, certificate: x509.Certificate) -> Issued:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = tuple(str(each.value) for each in found)
    except x509.ExtensionNotFound:
        hosts = ()
    return Issued(name=name, certificate=path, hosts=hosts, expires=certificate.not_valid_after_utc)


def _host(host: str) -> x509.GeneralName:
    """A host as certificates name it. Raises `UsageError`."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if len(host) > _LONGEST_HOST or not _HOST.fullmatch(host):
        raise UsageError(
            f"--host {host[:80]!r}: allowed is a host name or an address, such as head or 10.0.0.5"
        )
    return x509.DNSName(host)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    serial: int,
    *,
    now: datetime,
    days: float,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(serial)
        .not_valid_before(now.astimezone(UTC) - _SKEW)
        .not_valid_after(now.astimezone(UTC) + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
