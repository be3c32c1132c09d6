"""Connections on which a process resends in vain, from a /proc of our own and from the kernel's."""

import contextlib
import os
import socket

import pytest

from pulsetrain.collectors.machine.tcp import MOST_LISTED, RESENDS, stuck_connections
from pulsetrain.protocol.messages import StuckConnection

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
A, B = "0102000A:C350", "0202000A:1F90"  # 10.0.2.1 and 10.0.2.2


def row(inode, resends, *, state="01", queued=9, timer="01", local=A, remote=B):
    return (
        f"   0: {local} {remote} {state} {queued:08X}:00000000 {timer}:00000123 {resends:08X} "
        f"    0        0 {inode} 2 ffff0000 20 4 30 10 -1\n"
    )


class Proc:
    """Processes with sockets, and the table of their namespace."""

    def __init__(self, root):
        self.root = root

    def process(self, pid, *inodes, tcp="", tcp6=""):
        folder = self.root / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "net").mkdir()
        for number, inode in enumerate(inodes):
            (folder / "fd" / str(number)).symlink_to(f"socket:[{inode}]")
        (folder / "fd" / "99").symlink_to("/dev/null")
        (folder / "net" / "tcp").write_text(HEAD + tcp)
        (folder / "net" / "tcp6").write_text(HEAD + tcp6)


@pytest.fixture
def proc(tmp_path):
    return Proc(tmp_path)


def test_a_connection_belongs_to_the_process_that_has_it_open(proc):
    proc.process(7, 501, 502, tcp=row(501, RESENDS + 2) + row(777, 9) + row(601, RESENDS))
    proc.process(8, 601)
    stuck = stuck_connections([7, 8], proc.root)
    assert stuck == {
        7: [StuckConnection(local="10.0.2.1", remote="10.0.2.2", resends=RESENDS + 2)],
        8: [StuckConnection(local="10.0.2.1", remote="10.0.2.2", resends=RESENDS)],
    }


@pytest.mark.parametrize(
    "line",
    [
        row(501, RESENDS - 1),
        row(501, 0, timer="00", queued=0),
        row(501, 9, timer="04"),
        row(501, 9, queued=0),
        row(501, 9, state="0A"),
        "rubbish\n",
    ],
    ids=[
        "a packet was lost",
        "idle",
        "the receiver does not read",
        "all is acknowledged",
        "listens",
        "rubbish",
    ],
)
def test_nothing_else_is_stuck(proc, line):
    proc.process(7, 501, tcp=line)
    assert stuck_connections([7], proc.root) == {}


def test_an_address_of_ipv4_in_ipv6_is_that_of_ipv4(proc):
    mapped = "0000000000000000FFFF00000202000A:1F90"
    proc.process(7, 501, tcp6=row(501, 9, local="00000000000000000000000001000000:1", remote=mapped))
    (found,) = stuck_connections([7], proc.root)[7]
    assert (found.local, found.remote) == ("::1", "10.0.2.2")


def test_what_cannot_be_read_says_nothing(proc):
    assert stuck_connections([], proc.root) == {}
    assert stuck_connections([99], proc.root) == {}


def test_no_more_than_some_are_listed(proc):
    inodes = range(500, 500 + 3 * MOST_LISTED)
    proc.process(7, *inodes, tcp="".join(row(inode, 9) for inode in inodes))
    assert len(stuck_connections([7], proc.root)[7]) == MOST_LISTED


def test_a_peer_that_does_not_read_is_not_the_network():
    """The kernel's own table: the receiver's buffer is full, and nothing is resent."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
        with sender, receiver:
            sender.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while sender.send(bytes(1 << 16)):
                    pass
            assert stuck_connections([os.getpid()]) == {}
