"""What a checkpoint costs the training loop, beside the field's own ways, on one machine in one run.

    python benchmarks/checkpoint.py [--mib 1024 | --quick] [--device cpu|cuda] [--folder DIR] [--dlrover PY]

Prints one JSON object as its last line. Everything is measured on the same state: a stack of linear layers
and its AdamW state, `--mib` in all. `copy_s` is the limit: a bare copy of those bytes into memory that is
already there. A stall is how long the training thread waits: for `save` to return, and before the optimizer
for the copy to end. `--quick` measures a state of 64 MiB.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from pulsetrain.checkpoint.checkpointer import Checkpointer
from pulsetrain.checkpoint.memory.arena import ArenaReader, ArenaWriter, create_arena
from pulsetrain.checkpoint.peers.client import OutgoingReplica, PeerClient
from pulsetrain.checkpoint.peers.replicas import Replicas
from pulsetrain.checkpoint.peers.server import PeerServer
from pulsetrain.checkpoint.service import CheckpointService, CheckpointServiceConfig
from pulsetrain.checkpoint.storage.backend import open_storage
from pulsetrain.checkpoint.storage.manifest import Checkpoints

WIDTH = 2048
REPEATS = 5
TURNS = 9
FIRST_SAVE_AFTER = 4  # steps


class Job:
    """A model whose parameters and AdamW state are `mib`; its step takes longer than a copy of them."""

    def __init__(self, mib: int, device: str) -> None:
        layers = max(1, round(mib * 2**20 / 12 / (WIDTH * WIDTH)))
        self.model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers)]).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.batch = torch.randn(64 if device == "cpu" else 16384, WIDTH, device=device)
        self.device = device
        self.forward_backward()
        self.optimizer.step()

    def forward_backward(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.batch).pow(2).mean().backward()
        self.synchronize()

    def synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    @property
    def state(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}

    @property
    def plain(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    @property
    def tensors(self) -> list[torch.Tensor]:
        slots = [t for s in self.optimizer.state.values() for t in s.values()]
        return [p.detach() for p in self.model.parameters()] + slots

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.tensors)


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def median(call: Callable[[], float], repeats: int = REPEATS) -> float:
    return statistics.median(call() for _ in range(repeats))


def copies(job: Job) -> dict[str, float]:
    """A bare copy, a blocking save and a restore in turn, the median of each: what else the machine does
    disturbs all three alike. The copy's target is there already; pinned, where the state is on a device."""
    pin = job.device == "cuda"
    targets = [torch.zeros(t.shape, dtype=t.dtype, pin_memory=pin) for t in job.tensors]
    checkpointer = Checkpointer(job.state, blocking=True, rng=False)
    for step in range(3):  # each slot's pages are faulted in once
        checkpointer.save(step).wait()

    def copy() -> None:
        for target, source in zip(targets, job.tensors, strict=True):
            target.copy_(source, non_blocking=pin)
        job.synchronize()

    def back() -> None:
        checkpointer.restore(9)
        job.synchronize()

    turns = []
    for _ in range(2 + TURNS):
        bare, save = seconds(copy), seconds(lambda: checkpointer.save(9))
        info = checkpointer._last.wait()
        ArenaReader(checkpointer._arena.fd).set_verified(info)  # as the agent has, before it starts a rank
        turns.append((bare, save, seconds(back)))
    checkpointer.close()
    bare, save, restore = map(statistics.median, zip(*turns[2:], strict=True))
    return {
        "copy_s": bare,
        "stall_blocking_s": save,
        "stall_over_copy": save / bare,
        "restore_memory_s": restore,
        "restore_memory_ratio": restore / bare,
    }


def overlapped(job: Job) -> dict[str, float]:
    """Stall of the default, and how much longer forward and backward take beside the copy."""
    checkpointer = Checkpointer(job.state)
    checkpointer.restore()  # nothing; as every script calls it, room is made from here on
    for _ in range(FIRST_SAVE_AFTER):
        job.forward_backward()
        job.optimizer.step()
    first_stall = seconds(lambda: checkpointer.save(0))
    job.forward_backward()
    first_stall += seconds(checkpointer.wait)
    for step in (1, 2):
        checkpointer.save(step).wait()
    stalls, beside, alone = [], [], []
    for step in range(3, 3 + REPEATS):
        stall = seconds(lambda step=step: checkpointer.save(step))
        beside.append(seconds(job.forward_backward))
        stall += seconds(checkpointer.wait)
        stalls.append(stall)
        job.optimizer.step()
        checkpointer._last.wait()
        alone.append(seconds(job.forward_backward))
    checkpointer.close()
    return {
        "stall_overlapped_s": statistics.median(stalls),
        "first_save_stall_s": first_stall,
        "step_s": statistics.median(alone),
        "step_beside_copy_s": statistics.median(beside),
    }


def peers(job: Job) -> dict[str, Any]:
    """Torch's and DCP's savers: what the loop waits for."""
    from torch.distributed.checkpoint import async_save
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    times: dict[str, Any] = {}
    with folder() as place, process_group():
        times["torch_save_s"] = median(lambda: seconds(lambda: torch.save(job.plain, place / "state.pt")), 2)
        (place / "state.pt").unlink()

        def dcp(stager: Any = None) -> float:
            where = place / "dcp"
            start = time.perf_counter()
            answer = async_save(job.plain, checkpoint_id=where, async_stager=stager)
            took = time.perf_counter() - start
            future = getattr(answer, "upload_completion", answer)
            staging = getattr(answer, "staging_completion", None)
            if staging is not None:
                staging.result()
            future.result()
            shutil.rmtree(where)
            return took

        times["dcp_async_first_s"] = dcp()
        times["dcp_async_s"] = median(dcp, 2)
        for name, options in (
            ("dcp_stager_s", StagingOptions(False, False, False, False)),
            ("dcp_stager_async_shared_s", StagingOptions(False, True, True, False)),
        ):
            try:
                stager = DefaultStager(options)
                dcp(stager)
                times[name] = median(lambda stager=stager: dcp(stager), 3)
                stager.close()
            except Exception as error:  # noqa: BLE001 - what a peer cannot do here is part of the result
                times[name] = None
                times[f"{name}_why"] = str(error)[:200]
    return times


def flash_checkpoint(python: str, mib: int) -> dict[str, Any]:
    """DLRover's flash checkpoint of as many bytes, in an interpreter where it is installed."""
    command = [python, str(Path(__file__).parent / "peers" / "flash_checkpoint.py"), str(mib)]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=300, check=False
        )
        answer = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        answer = {"missing": f"{type(error).__name__}: {error}"}
    return {"dlrover_flash_checkpoint": answer}


def persist(job: Job) -> dict[str, float]:
    """From a published durable save to its manifest, against writing and syncing the same bytes."""
    with folder() as place:
        payload = torch.cat([t.detach().cpu().reshape(-1).view(torch.uint8) for t in job.tensors]).numpy()
        view = memoryview(payload)

        def raw() -> None:
            fd = os.open(place / "raw", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            done = 0
            while done < len(view):
                done += os.write(fd, view[done : done + (64 << 20)])
            os.fsync(fd)
            os.close(fd)

        raws, ours = [], []
        service = CheckpointService(
            CheckpointServiceConfig(storage=str(place / "store"), persist_every=0, replicas=1, poll_s=0.005),
            job="bench",
            node="n",
            address="127.0.0.1",
        )
        fd = create_arena()
        service.attach(0, fd)
        checkpointer = Checkpointer(
            job.state, environ={"PULSETRAIN_ARENA_FD": str(fd), "RANK": "0", "WORLD_SIZE": "1"}
        )
        for step in (1, 2, 3):
            raws.append(seconds(raw))
            (place / "raw").unlink()
            with torch.no_grad():  # other content, or it would be stored already
                for tensor in job.tensors:
                    tensor.add_(1e-3)
            result = checkpointer.save(step, durable=True)
            result.wait()
            ours.append(seconds(lambda result=result: result.wait_durable(120, 0.005)))
        disk = seconds(lambda: service.load(0, 3, "storage"))
        checkpointer.close()
        service.close()
        os.close(fd)
    return {
        "raw_write_s": min(raws),
        "persist_s": min(ours),
        "persist_ratio": min(raws) / min(ours),
        "restore_disk_s": disk,
    }


def serve_replicas(port: Any) -> None:
    server = PeerServer(Replicas(), address="127.0.0.1", port=0, token="t", job="bench")
    port.send(server.port)
    port.recv()


def serve_raw(port: Any, size: int) -> None:
    buffer = memoryview(bytearray(size))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port.send(listener.getsockname()[1])
        sock, _ = listener.accept()
        with sock:
            while True:
                done = 0
                while done < size:
                    got = sock.recv_into(buffer[done:])
                    if not got:
                        return
                    done += got
                sock.sendall(b"k")


@contextlib.contextmanager
def child(target: Callable[..., None], *arguments: Any) -> Iterator[int]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
    process.start()
    yield ours.recv()
    ours.send(None)
    process.join(2)
    if process.is_alive():
        process.kill()
        process.join()


def peer(job: Job) -> dict[str, float]:
    """Into another process's memory and back, against plain send and recv of the same bytes on loopback; in
    turn, the median of each."""
    fd, back = create_arena(), create_arena()
    checkpointer = Checkpointer(job.state, environ={"PULSETRAIN_ARENA_FD": str(fd)})
    info = checkpointer.save(1).wait()
    arena, writer = ArenaReader(fd), ArenaWriter(back)
    view = arena.view(info)
    with child(serve_replicas) as port, child(serve_raw, len(view)) as raw_port:
        client = PeerClient(address="127.0.0.1", port=port, token="t", job="bench", node="n")
        sock = socket.create_connection(("127.0.0.1", raw_port))

        def raw() -> None:
            sock.sendall(view)
            sock.recv(1)

        def put() -> None:
            ((_, sent),) = client.put([OutgoingReplica(arena, info)])
            assert sent == len(view), "all of it arrived"

        turns = [
            (
                seconds(raw),
                seconds(put),
                seconds(lambda: client.get(0, 1, writer)),
            )
            for _ in range(2 + TURNS)  # buffers are faulted in by the first two
        ]
        client.close()
        sock.close()
    bare, sent, fetched = map(statistics.median, zip(*turns[2:], strict=True))
    checkpointer.close()
    view.release()
    os.close(fd)
    os.close(back)
    return {"raw_loopback_s": bare, "peer_s": sent, "peer_ratio": bare / sent, "restore_peer_s": fetched}


def dedup_dp4(mib: int) -> float:
    """Bytes that four data-parallel replicas hold over the bytes that were stored for them."""
    torch.manual_seed(0)
    job = Job(mib, "cpu")
    with folder() as place:
        service = CheckpointService(
            CheckpointServiceConfig(storage=str(place), persist_every=1, replicas=1, poll_s=0.005),
            job="bench",
            node="n",
            address="127.0.0.1",
        )
        fds = [create_arena() for _ in range(4)]
        savers = []
        for rank, fd in enumerate(fds):
            service.attach(rank, fd)
            torch.manual_seed(rank)  # as real replicas: their own generators
            environ = {"PULSETRAIN_ARENA_FD": str(fd), "RANK": str(rank), "WORLD_SIZE": "4"}
            savers.append(Checkpointer(job.state, environ=environ))
            savers[-1].save(1)
        for saver in savers:
            saver._last.wait_durable(60)
            saver.close()
        manifest = Checkpoints(open_storage(str(place)), "bench").manifest(1)
        service.close()
        for fd in fds:
            os.close(fd)
    assert manifest is not None, "it was durable"
    return manifest.logical_bytes / manifest.written_bytes


PLACE: list[Path] = []


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pulsetrain-bench-", dir=PLACE[0] if PLACE else None) as name:
        yield Path(name)


@contextlib.contextmanager
def process_group() -> Iterator[None]:
    with folder() as place:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{place}/rendezvous", rank=0, world_size=1
        )
        yield
        torch.distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, default=1024, help="size of the state")
    parser.add_argument("--quick", action="store_true", help="a state of 64 MiB")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--folder", type=Path, help="where files are written; default: the temporary folder")
    parser.add_argument("--no-peers", action="store_true", help="leave out torch.save and DCP")
    parser.add_argument("--dlrover", metavar="PYTHON", help="an interpreter that has dlrover: measure it too")
    args = parser.parse_args()
    args.mib = min(64, args.mib) if args.quick else args.mib
    PLACE.extend([args.folder] if args.folder else [])
    warnings.simplefilter("ignore")
    job = Job(args.mib, args.device)
    result: dict[str, Any] = {"bytes": job.bytes, "device": args.device, "threads": torch.get_num_threads()}
    result.update(copies(job))
    result.update(overlapped(job))
    result["overlapped_over_copy"] = result["stall_overlapped_s"] / result["copy_s"]
    for part in (peer, persist) if args.no_peers else (peer, persist, peers):
        print(f"{part.__name__} ...", file=sys.stderr)
        result.update(part(job))
    if args.dlrover:
        result.update(flash_checkpoint(args.dlrover, args.mib))
    result["dedup_dp4"] = dedup_dp4(min(64, args.mib))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
