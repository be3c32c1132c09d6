"""What a checkpoint at every step costs the example job: interleaved with steps that do not save, in one run.

    python benchmarks/checkpoint_job.py [--steps 240] [--block 4] [--modes interleaved,blocking,naive]

Eight ranks on four local nodes train examples/train_gpt.py's model with agents, replicas in peers' memory and
persistence every 50 steps. Blocks of `--block` steps save and do not save in turn (ABBA), so that whatever
else the machine does hits both alike. Each mode is a job of its own with steps without saves between:
`interleaved` sends replicas in idle network spans (the default), `naive` at once and in one piece, and
`blocking` holds training until every peer has the replica. Prints one JSON object as its last line: for each
mode the ratio of the median step times with its 95 % bootstrap interval. The same file is the training
script of the ranks.
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
WARM_STEPS = 24  # in twenty of these the idle spans are learnt
MODES = ("interleaved", "blocking", "naive")


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
    mode, block, out = sys.argv.pop(1), int(sys.argv.pop(1)), Path(sys.argv.pop(1))
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
            result = checkpointer.save(step)
            if mode == "blocking":
                result.wait_replicated(30)
        # the save runs beside the next step, so that step bears its cost; the first of each block is mixed
        times.append((saves(step, block), time.perf_counter() - began))
    checkpointer.wait()
    if dist.get_rank() == 0:
        out.write_text(json.dumps(times))
    leave_together()


def leave_together() -> None:
    """End when every rank has left the last collective: one that closes its connections while another still
    reads from them fails it."""
    import torch.distributed as dist

    store, world = dist.distributed_c10d._get_default_store(), dist.get_world_size()
    dist.barrier()
    store.add("pulsetrain-bench-done", 1)
    while store.add("pulsetrain-bench-done", 0) < world:
        time.sleep(0.01)
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


def launch(folder: Path, mode: str, steps: int, block: int) -> list[tuple[bool, float]]:
    """Hub and four agents on loopback; ends when the job does."""
    program = str(Path(sys.executable).with_name("pulsetrain"))
    env = {
        **os.environ,
        "PULSETRAIN_DATA": str(folder / "hub"),
        "OMP_NUM_THREADS": "1",
        "PULSETRAIN_CHECKPOINT_PERSIST_EVERY": "50",
        "PULSETRAIN_CHECKPOINT_SENDING": "interleaved" if mode == "interleaved" else "at_once",
        "PULSETRAIN_CONTROLLER_HEARTBEAT_TIMEOUT_S": "20",  # eight ranks on few cores hold agents up
    }
    log = (folder / "log").open("wb")
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
            script = [__file__, mode, str(block), str(folder / "times.json"), "--steps", str(steps)]
            command = [program, "run", *flags, *script]
            token = {"PULSETRAIN_TOKEN": address["token"]}
            agents.append(subprocess.Popen(command, env=env | token, stdout=log, stderr=log))
        for agent in agents:
            if agent.wait():
                text = (folder / "log").read_text(errors="replace")
                raise SystemExit(f"{text[-8000:]}\nan agent ended with status {agent.returncode}")
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
    parser.add_argument("--modes", default=",".join(MODES), help="which, with commas between")
    args = parser.parse_args()
    result: dict[str, Any] = {"ranks": NODES * RANKS_PER_NODE, "cores": os.cpu_count(), "steps": args.steps}
    for mode in args.modes.split(","):
        found = measured(mode, args.steps, args.block)
        print(json.dumps({"mode": mode, **found}), file=sys.stderr, flush=True)
        result.update({key if mode == MODES[0] else f"{mode}_{key}": value for key, value in found.items()})
    print(json.dumps(result))


def measured(mode: str, steps: int, block: int) -> dict[str, float]:
    """One job: the ratio of step times with a save to those without."""
    with tempfile.TemporaryDirectory(prefix="pulsetrain-bench-") as name:
        times = launch(Path(name), mode, steps, block)
    with_save, without = clean_times(times, block)
    low, high = bootstrap(with_save, without)
    return {
        "step_ratio": statistics.median(with_save) / statistics.median(without),
        "step_ratio_low": low,
        "step_ratio_high": high,
        "step_s": statistics.median(without),
    }


if __name__ == "__main__":
    if "RANK" in os.environ:
        rank()
    else:
        main()
