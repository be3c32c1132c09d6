"""Packets between processes of one machine."""

import os
import socket

from pulsetrain.protocol import packets


def test_a_packet_brings_its_object_and_its_open_files():
    ours, theirs = packets.pair()
    read, write = os.pipe()
    packets.send(ours, {"op": "x", "of": [1, 2]}, [write])
    message, files = packets.receive(theirs, flags=socket.MSG_CMSG_CLOEXEC)
    assert message == {"op": "x", "of": [1, 2]}
    assert not os.get_inheritable(files[0])
    os.write(files[0], b"through")
    assert os.read(read, 10) == b"through"
    for fd in (read, write, *files):
        os.close(fd)
    ours.close()
    theirs.close()


def test_after_the_other_end_is_closed_there_is_none():
    ours, theirs = packets.pair()
    ours.close()
    assert packets.receive(theirs) is None
    theirs.close()


def test_an_object_that_is_too_large_for_a_packet_arrives_whole_with_its_files():
    """The words of a command may take 2 MiB, and the kernel's usual limit of a packet is a fifth of that."""
    ours, theirs = packets.pair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 17)
    read, write = os.pipe()
    before = len(os.listdir("/proc/self/fd"))
    words = ["file" * 50_000 for _ in range(10)]
    packets.send(ours, {"argv": words}, [write])
    message, files = packets.receive(theirs)
    assert message == {"argv": words}
    assert len(files) == 1
    assert len(os.listdir("/proc/self/fd")) == before + 1
    for fd in (read, write, *files):
        os.close(fd)
    ours.close()
    theirs.close()
