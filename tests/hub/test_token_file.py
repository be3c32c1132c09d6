"""Tokens besides the hub's own, as they are kept."""

import json
import os
import stat

import pytest

from pulsetrain.core.errors import CorruptData, UsageError
from pulsetrain.hub.token_file import KnownTokens, Role, TokenFile


@pytest.fixture
def file(tmp_path):
    return TokenFile(tmp_path / "data")


def test_a_token_is_known_by_its_hash_alone(file):
    token = file.create("ci", Role.VIEWER, now_ns=5, expires_ns=9)
    (grant,) = file.grants()
    assert (grant.name, grant.role, grant.created_ns, grant.expires_ns) == ("ci", Role.VIEWER, 5, 9)
    assert token not in file.path.read_text()
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert KnownTokens(file).grant(token) == grant
    assert KnownTokens(file).grant("") is None
    assert KnownTokens(file).grant(token + "x") is None


def test_a_running_hub_learns_of_new_and_revoked_tokens(file):
    known = KnownTokens(file)
    assert known.grant("anything") is None
    first = file.create("a", Role.AGENT, job="gpt", now_ns=1)
    assert known.grant(first).job == "gpt"
    second = file.create("b", Role.OPERATOR, now_ns=1)
    file.revoke("a")
    assert known.grant(first) is None
    assert known.grant(second).role is Role.OPERATOR


@pytest.mark.parametrize(
    ("name", "role", "job", "words"),
    [
        ("a", Role.VIEWER, "", "a token 'a' exists"),
        ("", Role.VIEWER, "", "token name '': allowed: 1 to 64"),
        ("a\nb", Role.VIEWER, "", "allowed: 1 to 64 printable"),
        ("b", Role.VIEWER, "gpt", "--job gpt: only an agent's token"),
    ],
)
def test_a_token_that_makes_no_sense_is_refused(file, name, role, job, words):
    file.create("a", Role.VIEWER, now_ns=1)
    with pytest.raises(UsageError, match=words):
        file.create(name, role, job=job, now_ns=1)
    assert len(file.grants()) == 1


def test_an_unknown_token_cannot_be_revoked(file):
    with pytest.raises(UsageError, match="no token 'x'; known: none"):
        file.revoke("x")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"tokens": [1]}', '{"tokens": [{"name": "a", "role": "king"}]}', "[" * 10**5]
)
def test_a_damaged_file_lets_nobody_in_and_is_told(file, text):
    token = file.create("a", Role.OPERATOR, now_ns=1)
    known = KnownTokens(file)
    assert known.grant(token)
    file.path.write_text(text)
    assert known.grant(token) is None
    with pytest.raises(CorruptData, match="is no list of tokens"):
        file.grants()


def test_a_file_that_cannot_be_read_for_a_moment_keeps_its_tokens(file, monkeypatch):
    known, first = KnownTokens(file), file.create("a", Role.VIEWER, now_ns=1)
    assert known.grant(first)
    second = file.create("b", Role.VIEWER, now_ns=1)

    def refused():
        raise OSError("too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(file, "grants", refused)
        assert known.grant(first)
        assert known.grant(second) is None
    assert known.grant(second)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_root_makes_belongs_to_the_user_of_the_folder(file):
    file.path.parent.mkdir()
    os.chown(file.path.parent, 65534, 65534)
    file.create("a", Role.VIEWER, now_ns=1)
    assert {path.stat().st_uid for path in file.path.parent.iterdir()} == {65534}


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="data folder"):
        TokenFile(tmp_path / "file").create("a", Role.VIEWER, now_ns=1)


def test_expiry_is_part_of_the_file(file):
    file.create("a", Role.VIEWER, now_ns=1, expires_ns=10)
    row = json.loads(file.path.read_text())["tokens"][0]
    assert row["expires_ns"] == 10
    (grant,) = file.grants()
    assert [grant.has_expired(now) for now in (9, 10)] == [False, True]
