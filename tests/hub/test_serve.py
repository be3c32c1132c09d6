"""Folder, token, port and address file of a hub."""

import contextlib
import json
import os
import socket
import stat

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.core.process_identity import is_process
from pulsetrain.hub.serve import bind, kept_token, make_folder, write_address


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
