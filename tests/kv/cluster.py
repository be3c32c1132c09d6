"""Real etcd members on ports of their own."""

import contextlib
import selectors
import subprocess
import threading
import time
from shutil import which
from socket import create_connection, create_server, socket

import httpx
import pytest

needs_etcd = pytest.mark.skipif(which("etcd") is None, reason="no etcd here: run deploy/test-services")


def free_ports(count):
    held = [socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


class Wires:
    """What a hub speaks to the members of a cluster through. Once it is cut, nothing passes any more."""

    def __init__(self, cluster):
        self._cut, self._selector, self._closed = False, selectors.DefaultSelector(), False
        self._listeners = [create_server(("127.0.0.1", 0)) for _ in cluster.ports]
        for listener, port in zip(self._listeners, cluster.ports, strict=True):
            self._selector.register(listener, selectors.EVENT_READ, port)
        ports = [listener.getsockname()[1] for listener in self._listeners]
        self.url = "etcd://" + ",".join(f"127.0.0.1:{port}" for port in ports)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cut(self):
        self._cut = True

    def close(self):
        self._closed = True
        self._thread.join(10)
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()
        self._selector.close()

    def _run(self):
        while not self._closed:
            for key, _ in self._selector.select(0.05):
                if self._cut:
                    time.sleep(0.01)
                elif key.fileobj in self._listeners:
                    self._join(key.fileobj.accept()[0], key.data)
                else:
                    self._pass(key.fileobj, key.data)

    def _join(self, near, port):
        try:
            far = create_connection(("127.0.0.1", port))
        except OSError:  # this member was killed
            near.close()
            return
        self._selector.register(near, selectors.EVENT_READ, far)
        self._selector.register(far, selectors.EVENT_READ, near)

    def _pass(self, source, sink):
        with contextlib.suppress(OSError):
            data = source.recv(1 << 16)
            if data:
                sink.sendall(data)
                return
        for end in (source, sink):
            self._selector.unregister(end)
            end.close()


class Cluster:
    """`count` members. `members` are their processes, `url` names all of them."""

    def __init__(self, folder, count=1):
        ports = free_ports(2 * count)
        self.ports, peers = ports[:count], ports[count:]
        self.url = "etcd://" + ",".join(f"127.0.0.1:{port}" for port in self.ports)
        initial = ",".join(f"m{i}=http://127.0.0.1:{peer}" for i, peer in enumerate(peers))
        self.commands = [
            [
                "etcd",
                f"--name=m{i}",
                f"--data-dir={folder / f'm{i}'}",
                f"--listen-client-urls=http://127.0.0.1:{port}",
                f"--advertise-client-urls=http://127.0.0.1:{port}",
                f"--listen-peer-urls=http://127.0.0.1:{peer}",
                f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
                f"--initial-cluster={initial}",
                f"--initial-cluster-token={folder.name}",
            ]
            for i, (port, peer) in enumerate(zip(self.ports, peers, strict=True))
        ]
        self.members = [self._start(command) for command in self.commands]

    def __enter__(self):
        try:
            deadline = time.monotonic() + 60
            while not all(self.healthy(port) for port in self.ports):
                assert time.monotonic() < deadline, "etcd does not start"
                time.sleep(0.05)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception):
        for member in self.members:
            member.kill()
        for member in self.members:
            member.wait(30)

    def restart(self, number):
        """A member that was killed comes back with its data."""
        self.members[number].wait(30)
        self.members[number] = self._start(self.commands[number])

    @staticmethod
    def _start(command):
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    @staticmethod
    def healthy(port):
        try:
            answer = httpx.get(f"http://127.0.0.1:{port}/health", timeout=5)
        except httpx.TransportError:
            return False
        return answer.status_code == 200 and answer.json().get("health") == "true"
