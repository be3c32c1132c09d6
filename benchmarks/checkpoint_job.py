"""What a checkpoint at every step costs the example job: interleaved with steps that do not save, in one run.

    python benchmarks/checkpoint_job.py [--steps 240] [--block 4]

Eight ranks on four local nodes train examples/train_gpt.py's model with agents, replicas in peers' memory and
persistence every 50 steps. Blocks of `--block` steps save and do not save in turn (ABBA), so that whatever
else the machine does hits both alike. Prints one JSON object as its last line: the ratio of the median step
times with its 95 % bootstrap interval. The same file is the training script of the ranks.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

NODES, RANKS_PER_NODE = 4, 2
REPOSITORY = Path(__file__).resolve().parents[1]
WARM_STEPS = 12


def example() -> Any:
    spec = importlib.util.spec_from_file_location("train_gpt", REPOSITORY / "examples" / "train_gpt.py")
    assert spec is not None, "the example lies beside the benchmarks"
    assert spec.loader is not None, "a file has a loader"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def saves(step: int, block: int) -> bool:
    """A B B A in blocks."""
    return (step // block) % 4 in (0, 3)


def rank() -> None:
    """One rank of the job; rank 0 writes (saved, seconds) of each step."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    import pulsetrain

    job = example()
    block, out = int(sys.argv.pop(1)), Path(sys.argv.pop(1))
    args = job.arguments()
    device = job.set_up(args)
    mesh = init_device_mesh(device.type, (args.pp, args.dp, args.tp), mesh_dim_names=("pp", "dp", "tp"))
    trainer = job.Trainer(args, mesh, device)
    watch, checkpointer = pulsetrain.init(mesh=mesh), pulsetrain.Checkpointer(trainer.state)
    checkpointer.restore()
    times: list[tuple[bool, float]] = []
    for step in range(args.steps):
        began = time.perf_counter()
        inputs, targets = (t.to(device) for t in job.batch_of(trainer.text, step, trainer.replica, args))
        trainer.forward_backward(inputs, targets)
        trainer.average_gradients()
        trainer.update(step)
        watch.step(tokens=inputs.numel(), flops=trainer.flops)
        if saves(step, block):
            checkpointer.save(step)
        # the save runs beside the next step, so that step bears its cost; the first of each block is mixed
        times.append((saves(step, block), time.perf_counter() - began))
    checkpointer.wait()
    if dist.get_rank() == 0:
        out.write_text(json.dumps(times))
    dist.barrier()
    dist.destroy_process_group()


def clean_times(times: list[tuple[bool, float]], block: int) -> tuple[list[float], list[float]]:
    """Step times with and without saving, without warm-up and without each block's first step."""
    with_save, without = [], []
    for step, (saved, seconds) in enumerate(times):
        if step >= WARM_STEPS and step % block:
            (with_save if saved else without).append(seconds)
    return with_save, without


def bootstrap(a: list[float], b: list[float], rounds: int = 2000) -> tuple[float, float]:
    """95 % interval of the ratio of medians."""
    draw = random.Random(0)
    ratios = sorted(
        statistics.median(draw.choices(a, k=len(a))) / statistics.median(draw.choices(b, k=len(b)))
        for _ in range(rounds)
    )
    return ratios[int(0.025 * rounds)], ratios[int(0.975 * rounds)]


def launch(folder: Path, steps: int, block: int) -> list[tuple[bool, float]]:
    """Hub and four agents on loopback; ends when the job does."""
    program = str(Path(sys.executable).with_name("pulsetrain"))
    env = {**os.environ, "PULSETRAIN_DATA": str(folder / "hub"), "OMP_NUM_THREADS": "1"}
    hub = subprocess.Popen(
        [program, "serve", "--no-dashboard", "--port", "0"],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    agents: list[subprocess.Popen[bytes]] = []
    try:
        known = folder / "hub" / "hub.json"
        while not known.exists():
            time.sleep(0.1)
        address = json.loads(known.read_text())
        for i in range(NODES):
            flags = ["--hub", address["url"], "--nnodes", str(NODES), "--nproc-per-node", str(RANKS_PER_NODE)]
            flags += ["--job", "bench", "--node", f"n{i}", "--address", f"127.0.0.{i + 2}"]
            flags += ["--data", str(folder / f"n{i}"), "--checkpoints", str(folder / "store")]
            script = [__file__, str(block), str(folder / "times.json"), "--steps", str(steps)]
            agents.append(
                subprocess.Popen(
                    [program, "run", *flags, *script],
                    env={
                        **env,
                        "PULSETRAIN_TOKEN": address["token"],
                        "PULSETRAIN_CHECKPOINT_PERSIST_EVERY": "50",
                    },
                    stdout=subprocess.DEVNULL,
                    stderr=sys.stderr,
                )
            )
        for agent in agents:
            if agent.wait():
                raise SystemExit(f"an agent ended with status {agent.returncode}")
        times: list[tuple[bool, float]] = json.loads((folder / "times.json").read_text())
        return times
    finally:
        for process in [*agents, hub]:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in [*agents, hub]:
            process.wait(20)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--block", type=int, default=4, help="steps that save, or do not, in a row")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pulsetrain-bench-") as name:
        times = launch(Path(name), args.steps, args.block)
    with_save, without = clean_times(times, args.block)
    low, high = bootstrap(with_save, without)
    result = {
        "step_ratio": statistics.median(with_save) / statistics.median(without),
        "step_ratio_low": low,
        "step_ratio_high": high,
        "step_s": statistics.median(without),
        "steps": len(with_save) + len(without),
        "ranks": NODES * RANKS_PER_NODE,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    if "RANK" in os.environ:
        rank()
    else:
        main()
