"""The job of kill_points.py: the ranks' script, an agent that pauses at a chosen moment, the reference run.

As the script of a rank it trains a small model. Some parameters differ between ranks. As ``run ...`` or
``agent ...`` it is Pulsetrain's own command line with one addition. Where a file `armed/MOMENT-NODE` exists,
the process pauses in the middle of that moment and creates a file in `reached/`. It goes on after a second,
unless it is killed. Where a file `sick-NODE` exists, the self-check of that node fails.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("KILL_POINTS", "."))
WAIT_S = 1.0


def pause_at(moment: str) -> None:
    """Pause here once, if this node is armed for `moment`."""
    node = os.environ.get("KILL_POINTS_NODE", "")
    armed = FOLDER / "armed" / f"{moment}-{node}"
    if not armed.exists():
        return
    with contextlib.suppress(FileNotFoundError):
        armed.unlink()
        (FOLDER / "reached" / f"{moment}-{node}-{os.getpid()}").touch()
        time.sleep(WAIT_S)


def agent() -> None:
    """Pulsetrain's command line, with moments at which it can pause."""
    from pulsetrain import cli
    from pulsetrain.agent.commands import Commands
    from pulsetrain.checkpoint.peers import client
    from pulsetrain.checkpoint.peers.client import PeerClient
    from pulsetrain.checkpoint.restoring import Restorer
    from pulsetrain.checkpoint.storage.backend import LocalStorage
    from pulsetrain.protocol.messages import SelfCheck

    put, send, fetch = LocalStorage.put, PeerClient._sendfile, Restorer._fetch
    send_frame = client.send_frame

    def pausing_put(self: Any, path: str, chunks: Iterable[memoryview | bytes]) -> int:
        moment = {"pack": "phase_two", "manifest.json": "manifest"}.get(path.rsplit("/", 1)[-1])
        moment = moment or ("phase_two" if path.endswith(".pack") else "")
        return put(self, path, pausing_chunks(chunks, moment) if moment else chunks)

    def pausing_send(self: Any, fd: int, offset: int, size: int) -> None:
        send(self, fd, offset, size // 2)
        pause_at("transfer")
        send(self, fd, offset + size // 2, size - size // 2)

    def pausing_frame(sock: Any, header: dict[str, Any], *bodies: Any) -> None:
        send_frame(PausingSocket(sock) if header.get("op") == "offer" else sock, header, *bodies)

    def pausing_fetch(self: Any, name: str, fd: int, rank: int, step: int) -> Any:
        pause_at("restore")
        return fetch(self, name, fd, rank, step)

    dispatch = Commands._dispatch

    def failing_dispatch(self: Any, command: Any, epoch: int) -> Any:
        sick = FOLDER / f"sick-{os.environ.get('KILL_POINTS_NODE', '')}"
        if isinstance(command, SelfCheck) and sick.exists():
            return {"ok": False, "failed": ["gemm"], "seconds": 0.0, "checks": []}
        return dispatch(self, command, epoch)

    patched: list[tuple[Any, str, Callable[..., Any]]] = [
        (Commands, "_dispatch", failing_dispatch),
        (client, "send_frame", pausing_frame),
        (LocalStorage, "put", pausing_put),
        (PeerClient, "_sendfile", pausing_send),
        (Restorer, "_fetch", pausing_fetch),
    ]
    for owner, name, function in patched:
        setattr(owner, name, function)
    cli.main()


class PausingSocket:
    """A socket that pauses in the middle of what it sends."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock

    def sendall(self, data: bytes) -> None:
        self._sock.sendall(data[: len(data) // 2])
        pause_at("transfer")
        self._sock.sendall(data[len(data) // 2 :])


def pausing_chunks(chunks: Iterable[memoryview | bytes], moment: str) -> Iterable[memoryview | bytes]:
    """The same bytes, with a pause in the middle of the first chunk."""
    for number, chunk in enumerate(chunks):
        half = len(chunk) // 2
        yield chunk[:half]
        if number == 0:
            pause_at(moment)
        yield chunk[half:]


def rank(steps: int = 1 << 40) -> None:
    """Train until the file `stop` is seen by rank 0, or for `steps`."""
    import torch
    import torch.distributed as dist

    import pulsetrain

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    me = dist.get_rank()
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Dropout(0.1), torch.nn.Linear(64, 8))
    torch.manual_seed(100 + me)
    own = torch.nn.Parameter(torch.randn(8))  # like a tensor-parallel shard: not averaged
    shared = list(model.parameters())
    optimizer = torch.optim.AdamW([*shared, own], lr=1e-3)
    watch = pulsetrain.init()
    checkpointer = pulsetrain.Checkpointer({"model": model, "own": own, "optimizer": optimizer})
    pause_copies_and_reads(checkpointer)
    restored = checkpointer.restore()
    (FOLDER / f"pid-{me}").write_text(str(os.getpid()))
    (FOLDER / f"node-{me}").write_text(os.environ.get("PULSETRAIN_NODE", ""))
    if me == 0:
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        text = f"{attempt} {-1 if restored is None else restored}"
        (FOLDER / ".resumed").write_text(text)
        (FOLDER / ".resumed").replace(FOLDER / "resumed")
    progress = os.open(FOLDER / "progress", os.O_WRONLY)
    step = -1 if restored is None else restored
    while step < steps - 1:
        step += 1
        go_on = train_step(model, own, optimizer, shared)
        watch.step()
        checkpointer.save(step)
        os.pwrite(progress, step.to_bytes(8, "little", signed=True), 8 * me)
        if not go_on:
            break
    finish([*shared, own], step + 1)


def train_step(model: Any, own: Any, optimizer: Any, shared: list[Any]) -> bool:
    """One step on random data. Returns whether to go on."""
    import torch
    import torch.distributed as dist

    time.sleep(0.04)  # like a step of a real model
    loss = (model(torch.randn(16, 32)) + own).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    bucket = torch.cat([p.grad.reshape(-1) for p in shared])
    dist.all_reduce(bucket)
    for p, mean in zip(
        shared, (bucket / dist.get_world_size()).split([p.numel() for p in shared]), strict=True
    ):
        p.grad.copy_(mean.view_as(p))
    stop = torch.tensor([float((FOLDER / "stop").exists())])
    dist.broadcast(stop, 0)
    optimizer.step()
    return not stop.item()


def pause_copies_and_reads(checkpointer: Any) -> None:
    """Let a copy pause with half of the bytes copied, and a restore before it has changed anything."""
    from pulsetrain.checkpoint import checkpointer as module

    finish, read = checkpointer._copier.finish, module.read_state

    def pausing_copy(pairs: Any) -> None:
        half = len(pairs.optimizer_owned[0]) // 2
        finish(pairs._replace(optimizer_owned=tuple(part[:half] for part in pairs.optimizer_owned)))
        pause_at("phase_one")
        finish(pairs._replace(optimizer_owned=tuple(part[half:] for part in pairs.optimizer_owned)))

    def pausing_read(arena: Any, info: Any) -> Any:
        pause_at("restore_rank")
        return read(arena, info)

    checkpointer._copier.finish, module.read_state = pausing_copy, pausing_read


def finish(parameters: list[Any], steps: int) -> None:
    """Rank 0 writes the number of steps and a hash over every rank's parameters."""
    import torch
    import torch.distributed as dist

    mine = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in parameters)).digest()
    digests = [torch.zeros(32, dtype=torch.uint8) for _ in range(dist.get_world_size())]
    dist.all_gather(digests, torch.frombuffer(bytearray(mine), dtype=torch.uint8))
    if dist.get_rank() == 0:
        whole = hashlib.sha256(b"".join(bytes(d.tolist()) for d in digests)).hexdigest()
        (FOLDER / ".end").write_text(f"{steps} {whole}")
        (FOLDER / ".end").replace(FOLDER / "end")
    dist.barrier()
    dist.destroy_process_group()


def reference(steps: int, world: int = 4) -> None:
    """The same training without agents, interruptions and pauses."""
    import socket

    import torch

    assert torch.get_num_threads() >= 1, "torch is imported before the fork"
    globals()["time"] = type("Time", (), {"sleep": staticmethod(lambda seconds: None)})
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    pids = []
    for me in range(world):
        if (pid := os.fork()) == 0:
            os.environ.update(
                RANK=str(me), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
            )
            status = 1
            try:
                rank(steps)
                status = 0
            finally:
                sys.stderr.flush()
                os._exit(status)
        pids.append(pid)
    if any(os.waitpid(pid, 0)[1] for pid in pids):
        raise SystemExit("the reference run failed")


if __name__ == "__main__":
    if "RANK" in os.environ:
        rank()
    elif sys.argv[1] == "reference":
        reference(*map(int, sys.argv[2:]))
    else:
        agent()
