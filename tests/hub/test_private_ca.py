"""A private CA in a folder: what it issues is good for its hosts and its days, and keys are private."""

import stat
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from pulsetrain.core.errors import CorruptData, UsageError
from pulsetrain.hub.private_ca import PrivateCa

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def ca(tmp_path):
    ca = PrivateCa(tmp_path / "ca")
    ca.create(now=NOW, days=100)
    return ca


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_keys_are_readable_by_their_owner_alone_and_certificates_by_all(ca):
    made = ca.issue("head", ["head.cluster"], now=NOW, days=30)
    for name in ("ca", "head"):
        assert mode(ca.folder / f"{name}.key") == 0o600
        assert mode(ca.folder / f"{name}.pem") == 0o644
    assert mode(ca.folder) == 0o700
    assert made.hosts == ("head.cluster", "localhost", "127.0.0.1", "::1")
    assert made.days_left(NOW) == 30
    assert made.days_left(NOW + timedelta(days=31)) == -1


def test_a_certificate_is_signed_by_the_authority_and_can_sign_none(ca):
    ca.issue("head", ["10.0.0.5"], now=NOW, days=30)
    authority, head = (
        x509.load_pem_x509_certificate((ca.folder / f"{name}.pem").read_bytes()) for name in ("ca", "head")
    )
    head.verify_directly_issued_by(authority)
    assert head.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0


def test_no_certificate_outlives_the_authority(ca):
    assert ca.issue("head", ["a"], now=NOW, days=1000).days_left(NOW) == 100
    with pytest.raises(UsageError, match="has expired: create a new one"):
        ca.issue("head", ["a"], now=NOW + timedelta(days=101), days=1)


def test_issuing_again_replaces_a_certificate_and_its_key(ca):
    ca.issue("head", ["a"], now=NOW, days=1)
    before = [(ca.folder / f"head.{end}").read_bytes() for end in ("pem", "key")]
    ca.issue("head", ["b"], now=NOW, days=2)
    after = [(ca.folder / f"head.{end}").read_bytes() for end in ("pem", "key")]
    assert before[0] != after[0]
    assert before[1] != after[1]
    assert [(each.name, each.days_left(NOW)) for each in ca.issued()] == [("ca", 100), ("head", 2)]


def test_an_authority_is_never_overwritten(ca):
    with pytest.raises(UsageError, match="holds a CA already"):
        ca.create(now=NOW, days=1)


@pytest.mark.parametrize("name", ["", "ca", "../x", "a b", "a/b", ".hidden", "x" * 64])
def test_a_name_that_is_no_name_of_a_file_is_refused(ca, name):
    with pytest.raises(UsageError, match="certificate name"):
        ca.issue(name, ["a"], now=NOW, days=1)


@pytest.mark.parametrize("host", ["", "a b", "http://a", "a..b", "x" * 254, "a/24", "*"])
def test_a_host_that_is_none_is_refused(ca, host):
    with pytest.raises(UsageError, match="--host"):
        ca.issue("head", [host], now=NOW, days=1)


def test_without_a_usable_authority_nothing_is_issued(tmp_path, ca):
    with pytest.raises(UsageError, match=r"no CA in .*: make one with `pulsetrain ca create"):
        PrivateCa(tmp_path / "none").issue("head", ["a"], now=NOW, days=1)
    (ca.folder / "ca.key").write_text("damaged")
    with pytest.raises(CorruptData, match="no private key"):
        ca.issue("head", ["a"], now=NOW, days=1)
    (ca.folder / "other.pem").write_text("damaged")
    with pytest.raises(CorruptData, match="no certificate"):
        ca.issued()
