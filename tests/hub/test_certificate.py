"""The certificate that a hub shows follows its files. What is on disk is real, and so are the handshakes."""

import os
import socket
import threading

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.hub.certificate import CertificateFiles, ServerCertificate
from pulsetrain.protocol import tls
from tests.protocol.tls_server import issued


@pytest.fixture
def made(tmp_path):
    return issued(tmp_path, "head")


def shown(server, ca):
    """The hosts of the certificate that a client sees in a handshake."""
    ours, theirs = socket.socketpair()

    def serve():
        with server.context.wrap_socket(theirs, server_side=True) as connection:
            connection.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    with tls.client_context(ca).wrap_socket(ours, server_hostname="localhost") as connection:
        names = [value for _, value in connection.getpeercert()["subjectAltName"]]
        connection.send(b"x")
    thread.join()
    return names


def test_key_and_ca_are_found_beside_the_certificate(made, tmp_path):
    files = CertificateFiles.of(str(made.certificate))
    assert (files.key, files.ca) == (tmp_path / "head.key", str(tmp_path / "ca.pem"))
    (tmp_path / "ca.pem").unlink()
    assert CertificateFiles.of(str(made.certificate)).ca == ""
    assert CertificateFiles.of(str(made.certificate), "/k", "/c") == CertificateFiles(
        certificate=made.certificate, key=tmp_path.__class__("/k"), ca="/c"
    )
    assert CertificateFiles.of("") is None
    with pytest.raises(UsageError, match="without a certificate"):
        CertificateFiles.of("", "key.pem")


def test_a_certificate_that_was_issued_anew_is_shown_without_a_restart(made, tmp_path):
    files = CertificateFiles.of(str(made.certificate))
    server = ServerCertificate(files)
    assert "head" in shown(server, files.ca)
    assert not server.look()
    issued(tmp_path, "renewed")
    assert server.look()
    assert "renewed" in shown(server, files.ca)


def test_files_that_do_not_fit_yet_leave_the_old_certificate_in_use(made, tmp_path):
    files = CertificateFiles.of(str(made.certificate))
    server = ServerCertificate(files)
    other = issued(tmp_path, "other", name="other")
    files.key.write_bytes(other.certificate.with_suffix(".key").read_bytes())
    assert not server.look()
    assert "head" in shown(server, files.ca)
    files.certificate.unlink()
    assert not server.look()
    files.certificate.write_bytes(other.certificate.read_bytes())
    assert server.look()
    assert "other" in shown(server, files.ca)


def test_files_that_cannot_be_used_are_one_line(made, tmp_path):
    with pytest.raises(UsageError, match=r"none\.pem or key .*none\.key: No such file"):
        ServerCertificate(CertificateFiles.of(str(tmp_path / "none.pem")))
    with pytest.raises(UsageError, match="are no certificate and its key"):
        ServerCertificate(CertificateFiles.of(str(made.certificate), str(tmp_path / "ca.key")))
    os.truncate(made.certificate, 10)
    with pytest.raises(UsageError, match="are no certificate and its key"):
        ServerCertificate(CertificateFiles.of(str(made.certificate)))
