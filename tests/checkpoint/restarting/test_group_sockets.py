"""The sockets of process groups are known, and shutting them wakes who waits."""

import os
import socket

import pytest

from pulsetrain.checkpoint.restarting.group_sockets import GroupSockets, open_sockets


@pytest.fixture
def server():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def connect(server):
    ours = socket.create_connection(server.getsockname())
    theirs, _ = server.accept()
    return ours, theirs


def test_open_sockets_are_found_and_files_are_not(server, tmp_path):
    with (tmp_path / "file").open("w") as file:
        assert server.fileno() in open_sockets()
        assert file.fileno() not in open_sockets()


def test_connections_of_a_group_end_and_those_of_the_script_stay(server):
    sockets = GroupSockets()
    own = connect(server)
    group = sockets.noting(connect)(server)
    assert sockets.shut() == 2
    group[0].settimeout(5)
    assert group[0].recv(1) == b""
    own[0].sendall(b"x")
    assert own[1].recv(1) == b"x"
    for each in (*own, *group):
        each.close()


def test_a_socket_that_listens_is_left_alone():
    sockets = GroupSockets()
    listening = sockets.noting(lambda: socket.create_server(("127.0.0.1", 0)))()
    assert sockets.shut() == 0
    with socket.create_connection(listening.getsockname()):
        listening.close()


def test_a_descriptor_that_means_something_else_by_now_is_left_alone(server):
    sockets = GroupSockets()
    group = sockets.noting(connect)(server)
    later = connect(server)
    os.dup2(later[0].fileno(), group[0].fileno())
    assert sockets.shut() == 1
    later[0].sendall(b"x")
    assert later[1].recv(1) == b"x"
    for each in (*later, *group):
        each.close()


def test_groups_that_are_gone_are_forgotten(server):
    sockets = GroupSockets()
    group = sockets.noting(connect)(server)
    sockets.forget()
    assert sockets.shut() == 0
    for each in group:
        each.close()


def test_sockets_of_a_group_that_could_not_be_made_count_too(server):
    sockets, made = GroupSockets(), []

    def fail():
        made.extend(connect(server))
        raise RuntimeError("a peer did not come")

    with pytest.raises(RuntimeError, match="did not come"):
        sockets.noting(fail)()
    assert sockets.shut() == 2
    for each in made:
        each.close()
