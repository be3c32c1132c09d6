"""Folder, token, port and address file of a hub."""

import contextlib
import json
import os
import socket
import stat

import pytest

from pulsetrain.core.errors import AuthError, Unavailable, UsageError
from pulsetrain.core.process_identity import is_process
from pulsetrain.hub.serve import (
    STORE_LONGEST_AGAIN_S,
    STORE_PATIENCE_S,
    bind,
    kept_token,
    make_folder,
    wait_for_store,
    write_address,
)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_the_token_of_a_folder_is_made_once_and_only_its_owner_may_read_it(tmp_path):
    token = kept_token(tmp_path)
    assert len(token) > 20
    assert kept_token(tmp_path) == token
    assert mode(tmp_path / "token") == 0o600


def test_a_token_that_was_never_written_is_made_anew(tmp_path):
    (tmp_path / "token").touch()
    assert len(kept_token(tmp_path)) > 20
    assert kept_token(tmp_path) == (tmp_path / "token").read_text()


def test_the_address_file_is_replaced_whole(tmp_path):
    write_address(tmp_path, {"url": "http://a", "token": "x"})
    write_address(tmp_path, {"url": "http://b"})
    written = json.loads((tmp_path / "hub.json").read_text())
    assert is_process(os.getpid(), written.pop("process"))
    assert written == {"url": "http://b"}
    assert mode(tmp_path / "hub.json") == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["hub.json"]


def test_a_data_folder_is_private_and_a_file_in_its_way_is_named(tmp_path):
    folder = tmp_path / "a" / "b"
    make_folder(folder)
    assert [mode(folder), mode(folder.parent)] == [0o700, 0o700]
    assert list(folder.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"data folder .*file: .*; give --data"):
        make_folder(tmp_path / "file")


def test_a_port_in_use_is_one_line_with_the_flag():
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"127.0.0.1:{port}.*; give --dashboard-port another port"):
            bind("127.0.0.1", port, "--dashboard-port")


@pytest.mark.parametrize("host", ["192.0.2.1", "nosuch.invalid"])
def test_an_address_that_is_not_this_machines_is_one_line_with_its_flag(host):
    with pytest.raises(UsageError, match=rf"cannot listen on {host}:0: .*; give --host an address of this"):
        bind(host, 0)


def test_port_0_takes_a_free_one():
    with bind("127.0.0.1", 0) as listener:
        assert listener.getsockname()[1] > 0


class Away:
    """A store that does what a list says, the last for ever."""

    def __init__(self, *outcomes):
        self.outcomes, self.said, self.pauses = list(outcomes), [], []

    def open(self):
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def wait(self):
        return wait_for_store(self.open, Unavailable("store x is away"), self.said.append, self.pauses.append)


def test_a_store_that_is_away_at_the_start_is_waited_for_with_one_line():
    away = Away(*[Unavailable("refused")] * 6, "the store")
    assert away.wait() == "the store"
    assert away.said == ["waiting    store x is away"]
    assert away.pauses == [1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0]


def test_a_wrong_password_is_not_waited_for():
    away = Away(Unavailable("refused"), AuthError("store x refuses the token"))
    with pytest.raises(AuthError):
        away.wait()
    assert len(away.pauses) == 2


def test_a_store_that_stays_away_is_an_error_in_the_end():
    away = Away(Unavailable("refused"))
    with pytest.raises(Unavailable, match="refused"):
        away.wait()
    assert STORE_PATIENCE_S <= sum(away.pauses) <= STORE_PATIENCE_S + STORE_LONGEST_AGAIN_S
