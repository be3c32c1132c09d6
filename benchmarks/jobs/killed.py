"""The job of kill_points.py: the ranks' script, the agent that stands still at a moment, the reference run.

As a script of a rank it trains a small model whose ranks differ in part. As ``run ...`` or ``agent ...`` it
is Pulsetrain's own command line with one thing added: where a file `armed/MOMENT-NODE` says so, it stops in
the middle of that moment, says so in `reached/`, and goes on after a second unless it is killed.
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


def stand(moment: str) -> None:
    """Stop here, once, if this node is asked to."""
    node = os.environ.get("KILL_POINTS_NODE", "")
    armed = FOLDER / "armed" / f"{moment}-{node}"
    if not armed.exists():
        return
    with contextlib.suppress(FileNotFoundError):
        armed.unlink()
        (FOLDER / "reached" / f"{moment}-{node}-{os.getpid()}").touch()
        time.sleep(WAIT_S)


def agent() -> None:
    """Pulsetrain's command line with moments to stop at."""
    from pulsetrain import cli
    from pulsetrain.checkpoint.peers import client
    from pulsetrain.checkpoint.peers.client import PeerClient
    from pulsetrain.checkpoint.restoring import Restorer
    from pulsetrain.checkpoint.storage.backend import LocalStorage

    put, send, fetch = LocalStorage.put, PeerClient._sendfile, Restorer._fetch
    send_frame = client.send_frame

    def halting_put(self: Any, path: str, chunks: Iterable[memoryview | bytes]) -> int:
        moment = {"pack": "phase_two", "manifest.json": "manifest"}.get(path.rsplit("/", 1)[-1])
        moment = moment or ("phase_two" if path.endswith(".pack") else "")
        return put(self, path, halved(chunks, moment) if moment else chunks)

    def halting_send(self: Any, fd: int, offset: int, size: int) -> None:
        send(self, fd, offset, size // 2)
        stand("transfer")
        send(self, fd, offset + size // 2, size - size // 2)

    def halting_frame(sock: Any, header: dict[str, Any], *bodies: Any) -> None:
        send_frame(Halved(sock) if header.get("op") == "offer" else sock, header, *bodies)

    def halting_fetch(self: Any, name: str, fd: int, rank: int, step: int) -> Any:
        stand("restore")
        return fetch(self, name, fd, rank, step)

    patched: list[tuple[Any, str, Callable[..., Any]]] = [
        (client, "send_frame", halting_frame),
        (LocalStorage, "put", halting_put),
        (PeerClient, "_sendfile", halting_send),
        (Restorer, "_fetch", halting_fetch),
    ]
    for owner, name, function in patched:
        setattr(owner, name, function)
    cli.main()


class Halved:
    """A socket that stops in the middle of what it sends."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock

    def sendall(self, data: bytes) -> None:
        self._sock.sendall(data[: len(data) // 2])
        stand("transfer")
        self._sock.sendall(data[len(data) // 2 :])


def halved(chunks: Iterable[memoryview | bytes], moment: str) -> Iterable[memoryview | bytes]:
    """The same bytes, with a stop in the middle of the first chunk."""
    for number, chunk in enumerate(chunks):
        half = len(chunk) // 2
        yield chunk[:half]
        if number == 0:
            stand(moment)
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
    own = torch.nn.Parameter(torch.randn(8))  # as a tensor-parallel rank has: its own, averaged with nobody
    shared = list(model.parameters())
    optimizer = torch.optim.AdamW([*shared, own], lr=1e-3)
    watch = pulsetrain.init()
    checkpointer = pulsetrain.Checkpointer({"model": model, "own": own, "optimizer": optimizer})
    halt(checkpointer)
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
        goes_on = train_step(model, own, optimizer, shared)
        watch.step()
        checkpointer.save(step)
        os.pwrite(progress, step.to_bytes(8, "little", signed=True), 8 * me)
        if not goes_on:
            break
    finish([*shared, own], step + 1)


def train_step(model: Any, own: Any, optimizer: Any, shared: list[Any]) -> bool:
    """One step on random data; whether there shall be another."""
    import torch
    import torch.distributed as dist

    time.sleep(0.04)  # as a step of a real model takes
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


def halt(checkpointer: Any) -> None:
    """Phase one can stand still with half of the bytes copied, a restore before it has changed anything."""
    from pulsetrain.checkpoint import checkpointer as module

    finish, read = checkpointer._copier.finish, module.read_state

    def halting_copy(pairs: Any) -> None:
        half = len(pairs.optimizer_owned[0]) // 2
        finish(pairs._replace(optimizer_owned=tuple(part[:half] for part in pairs.optimizer_owned)))
        stand("phase_one")
        finish(pairs._replace(optimizer_owned=tuple(part[half:] for part in pairs.optimizer_owned)))

    def halting_read(arena: Any, info: Any) -> Any:
        stand("restore_rank")
        return read(arena, info)

    checkpointer._copier.finish, module.read_state = halting_copy, halting_read


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
        reference(int(sys.argv[2]))
    else:
        agent()
