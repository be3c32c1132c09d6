"""A fake of NCCL's RAS: it speaks the client protocol as src/ras/client_support.cc of NVIDIA/nccl does.

No NCCL is behind it. Reports follow the format that the same file writes. They were written, not recorded.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

KINDS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv", "Send", "Recv")


def communicator(
    name: str, counts: Sequence[int | None], *, host="10.0.0.1", first_pid=100, pids=None, second="0xa:0xb"
):
    """One communicator as NCCL 2.28.7 and later writes it. A count of None: that rank does not answer."""
    pids = pids or [first_pid + i for i in range(len(counts))]
    where = [
        {"rank": i, "host": host, "pid": pid, "cuda_dev": i, "nvml_dev": i} for i, pid in enumerate(pids)
    ]
    running = {
        "init_state": 0,
        "async_error": 0,
        "finalize_called": False,
        "destroy_flag": False,
        "abort_flag": False,
    }
    ranks = [
        {**at, "status": running, "collective_counts": {**dict.fromkeys(KINDS, 0), "AllReduce": count}}
        for at, count in zip(where, counts, strict=True)
        if count is not None
    ]
    missing = [
        {**at, "status": {"unresponsive": True, "considered_dead": False}}
        for at, count in zip(where, counts, strict=True)
        if count is None
    ]
    return {
        "hash": name,
        "secondary_hash": second,
        "size": len(counts),
        "ranks_count": len(ranks),
        "missing_ranks_count": len(missing),
        "ranks": ranks,
        "missing_ranks": missing,
    }


def report(*communicators: Mapping[str, object]) -> str:
    """A whole answer."""
    return json.dumps(
        {
            "nccl_version": "2.28.9",
            "cuda_runtime_version": 13000,
            "cuda_driver_version": 13000,
            "timestamp": "2026-05-05 06:16:47",
            "communicators_count": len(communicators),
            "communicators": list(communicators),
            "ras": {"collection_time_sec": 0.003, "timeouts_count": 0},
        },
        indent=2,
    )


@dataclass
class FakeRas:
    """What it answers, one after the other, the last one again and again. `commands` is what it was told.

    `greeting` is its answer to a client's protocol. `formats`: it knows SET FORMAT. `silent` is how many
    connections it takes without a word, as a process that is stopped does.
    """

    answers: list[str]
    greeting: str = "SERVER PROTOCOL 2"
    formats: bool = True
    silent: int = 0
    commands: list[str] = field(default_factory=list)
    connections: int = 0
    port: int = 0

    def serve(self, connection: socket.socket) -> None:
        """One conversation."""
        self.connections += 1
        if self.connections <= self.silent:
            connection.recv(4096)
            connection.recv(4096)
            return
        for line in connection.makefile("r"):
            command = line.strip()
            self.commands.append(command)
            if command.startswith("CLIENT PROTOCOL"):
                reply = self.greeting
            elif command.startswith("SET FORMAT") and not self.formats:
                reply = f"ERROR: Unknown command {command}"
            elif command == "VERBOSE STATUS":
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                connection.sendall(answer.encode() + b"\n")
                return
            else:
                reply = "OK"
            connection.sendall(f"{reply}\n".encode())


@contextlib.contextmanager
def fake_ras(*answers: str, **options) -> Iterator[FakeRas]:
    """A fake that listens on `port` of loopback until the block ends."""
    ras = FakeRas(list(answers), **options)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ras.port = listener.getsockname()[1]

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=talk, args=(connection,), daemon=True).start()

        def talk(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                ras.serve(connection)

        threading.Thread(target=accept, daemon=True).start()
        yield ras
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
