"""A plain DDP script that pauses in one of eight ways, or hangs in one of five. It does not use Pulsetrain.

    torchrun --nproc-per-node 2 pausing.py KIND SECONDS [--steps N] [--folder DIR] [--no-save]

The pauses last about SECONDS: `save` (rank 0 writes a file), `evaluation` (rank 0 alone), `first_batch` (slow
on rank 0), `compile` (torch.compile on rank 1), `download` (rank 0, over HTTP), `loader` (a worker of a data
loader stands still), `debugger` (rank 1 sleeps), `retry` (rank 0 waits for a thread that sleeps). The hangs
last for ever: `stop` (SIGSTOP), `skip` (rank 1 skips a collective), `gil` (rank 1 sleeps in C and holds the
GIL), `spin` (rank 1 loops), `lock` (rank 1 waits for a lock that it holds). They strike in the first attempt
alone. With `none` nothing happens.

Rank 0 saves the model every 10 steps, and every rank resumes from that file, as many scripts do. It prints
``step N`` after each step. The rank at fault prints ``begins KIND`` first, except for pauses of a loader.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

SAVE_EVERY = 10
WIDTH = 64

SERVER = """
import http.server, sys, time
seconds = float(sys.argv[1])
class Slow(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.wfile.write(bytes(16384))
            time.sleep(0.2)
    def log_message(self, *rest):
        pass
server = http.server.HTTPServer(("127.0.0.1", 0), Slow)
print(server.server_port, flush=True)
server.handle_request()
"""


class Samples(Dataset[torch.Tensor]):
    """Random samples. Sample `slow` takes `seconds` longer than the others."""

    def __init__(self, size: int, slow: int = -1, seconds: float = 0.0) -> None:
        self.size, self.slow, self.seconds = size, slow, seconds

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.slow:
            time.sleep(self.seconds)
        return torch.full((WIDTH,), 1.0 / (1 + index % 7))


# -- pauses ---------------------------------------------------------------------------------------------


def save(seconds: float, folder: Path, model: torch.nn.Module) -> None:
    """Write the model again and again, like one large checkpoint."""
    end, ballast = time.monotonic() + seconds, torch.zeros(1 << 20)
    while time.monotonic() < end:
        torch.save({"model": model.state_dict(), "ballast": ballast}, folder / "large.pt")


def evaluation(seconds: float, folder: Path, model: torch.nn.Module) -> None:
    """Compute the loss of many samples."""
    end, total = time.monotonic() + seconds, 0.0
    with torch.no_grad():
        while time.monotonic() < end:
            for _ in range(20):
                total += float(forward(model, torch.ones(256, WIDTH)))


def compilation(seconds: float, folder: Path, model: torch.nn.Module) -> None:
    """Compile one function after another: with a C++ compiler the whole way, else what Python does of it."""
    end, width = time.monotonic() + seconds, 8
    backend = "inductor" if shutil.which("g++") else "eager"
    while time.monotonic() < end:
        width += 1
        torch._dynamo.reset()
        torch.compile(lambda x: torch.relu(x @ x).sin().sum(), backend=backend)(torch.ones(width, width))


def download(seconds: float, folder: Path, model: torch.nn.Module) -> None:
    """Read a file from a slow server."""
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(seconds)], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    url = f"http://127.0.0.1:{int(server.stdout.readline())}/"
    with urllib.request.urlopen(url) as answer, (folder / "download").open("wb") as file:
        shutil.copyfileobj(answer, file)
    server.wait()


def debugger(seconds: float, folder: Path, model: torch.nn.Module) -> None:
    """Stand still, as under a debugger."""
    time.sleep(seconds)


def retry(seconds: float, folder: Path, model: torch.nn.Module) -> None:
    """Wait for a worker thread that waits before it tries again."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(time.sleep, seconds).result()


PAUSES: dict[str, tuple[int, Callable[[float, Path, torch.nn.Module], None]]] = {
    "save": (0, save),
    "evaluation": (0, evaluation),
    "compile": (1, compilation),
    "download": (0, download),
    "debugger": (1, debugger),
    "retry": (0, retry),
}
IN_LOADER = ("first_batch", "loader")


# -- hangs ----------------------------------------------------------------------------------------------


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def gil() -> None:
    ctypes.PyDLL(None).sleep(ctypes.c_uint(1 << 30))


def spin() -> None:
    while True:
        pass


def lock() -> None:
    held = threading.Lock()
    held.acquire()
    held.acquire()


HANGS: dict[str, Callable[[], None]] = {"stop": stop, "gil": gil, "spin": spin, "lock": lock}
KINDS = (*PAUSES, *IN_LOADER, *HANGS, "skip", "none")


# -- the job --------------------------------------------------------------------------------------------


def forward(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = (model(batch) - 1).pow(2).mean()
    return loss


def batches(args: argparse.Namespace, rank: int, begin: int) -> Iterator[torch.Tensor]:
    """The batches of this rank from step `begin` on."""
    slow = -1
    if args.kind in IN_LOADER and rank == 0 and first_attempt():
        slow = 4 * (begin if args.kind == "first_batch" else args.steps // 2)
    workers = 1 if args.kind == "loader" else 0
    data = Samples(4 * args.steps, slow, args.seconds)
    order = list(range(4 * begin, 4 * args.steps))
    return iter(DataLoader(data, batch_size=4, sampler=order, num_workers=workers))


def first_attempt() -> bool:
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"


def disturb(args: argparse.Namespace, rank: int, model: torch.nn.Module) -> None:
    """What happens in the middle of the run."""
    if args.kind in PAUSES:
        who, pause = PAUSES[args.kind]
        if rank == who:
            begins(args.kind)
            pause(args.seconds, args.folder, model)
    elif first_attempt() and args.kind == "skip":
        if rank != 1:
            dist.barrier()
        else:
            begins(args.kind)
    elif first_attempt() and args.kind in HANGS and rank == 1:
        begins(args.kind)
        HANGS[args.kind]()


def begins(kind: str) -> None:
    """Tell whoever reads the output that it begins now."""
    print(f"begins {kind}", flush=True)


def train(args: argparse.Namespace) -> float:
    """All steps. Returns the last loss."""
    rank, file = dist.get_rank(), args.folder / "model.pt"
    torch.manual_seed(7)
    plain = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH))
    begin, loss = 0, torch.zeros(())
    if file.exists():
        saved = torch.load(file)
        plain.load_state_dict(saved["model"])
        begin = saved["step"] + 1
    model = torch.nn.parallel.DistributedDataParallel(plain)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    data = batches(args, rank, begin)
    for step in range(begin, args.steps):
        loss = forward(model, next(data))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step}", flush=True)
        time.sleep(0.02)  # like the time of a larger model
        if step % SAVE_EVERY == SAVE_EVERY - 1 and rank == 0 and args.save:
            torch.save({"model": plain.state_dict(), "step": step}, file)
        if step == args.steps // 2:
            disturb(args, rank, plain)
    return float(loss)


def main() -> None:
    """Run one rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "pausing")
    parser.add_argument("--no-save", dest="save", action="store_false")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    loss = train(args)
    dist.barrier()
    print(f"finished attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')} loss {loss:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
