"""What a checkpoint at every step costs the example job: interleaved with steps that do not save, in one run.

    python benchmarks/checkpoint_job.py [--steps 240] [--block 4] [--nodes 4] [the example's own flags]
                                        [--modes default,interleaved,blocking,naive]

Two ranks on each of four local nodes train examples/train_gpt.py's model with agents, replicas in peers'
memory and persistence every 50 steps. Blocks of `--block` steps save and do not save in turn (ABBA), so that
whatever else the machine does hits both alike. Each mode is a job of its own with steps without saves
between. `default` is Pulsetrain as it comes: replicas go in idle network spans, and what a data-parallel
replica on the peer has saved too is not sent. In the other three all of it is sent (`share_equal = false`):
`interleaved` in idle spans, `naive` at once and in one piece, and `blocking` holds training until every peer
has the replica. Prints one JSON object as its last line: for each mode (the default's keys have no prefix)
the median over the ABBA cycles, with its 95 % bootstrap interval, of the ratio of step times, of the ratio of
processor time of all processes, and of the processor seconds that a save adds to a step, in all and of ranks,
agents and hub. What agents and hub do for a save seconds later (its records) counts to whatever steps run
then: `--block 20` counts most of it to the saves. The same file is the training script of the ranks.
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pulsetrain.stream.store.clickhouse import open_store

RANKS_PER_NODE = 2
REPOSITORY = Path(__file__).resolve().parents[1]
WARM_STEPS = 24  # in twenty of these the idle spans are learnt
MODES = ("default", "interleaved", "blocking", "naive")


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
    mode, block, root, hub, out = (sys.argv.pop(1) for _ in range(5))
    args = job.arguments()
    device = job.set_up(args)
    mesh = init_device_mesh(device.type, (args.pp, args.dp, args.tp), mesh_dim_names=("pp", "dp", "tp"))
    trainer = job.Trainer(args, mesh, device)
    watch, checkpointer = pulsetrain.init(mesh=mesh), pulsetrain.Checkpointer(trainer.state)
    checkpointer.restore()
    ranks: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(ranks, os.getpid())
    meter = Meter(int(root), int(hub), ranks)
    steps: list[Step] = []
    for step in range(args.steps):
        began = time.perf_counter()
        inputs, targets = (t.to(device) for t in job.batch_of(trainer.text, step, trainer.replica, args))
        trainer.forward_backward(inputs, targets)
        trainer.average_gradients()
        trainer.update(step)
        watch.step(tokens=inputs.numel(), flops=trainer.flops)
        if saves(step, int(block)):
            result = checkpointer.save(step)
            if mode == "blocking":
                result.wait_replicated(30)
        # the save runs beside the next step, so that step bears its cost; the first of each block is mixed
        took = time.perf_counter() - began
        if dist.get_rank() == 0:
            steps.append(Step(saves(step, int(block)), took, *meter.read()))
    checkpointer.wait()
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps(steps))
    leave_together()


class Step(NamedTuple):
    """One step as rank 0 saw it, with the processor seconds of all ranks, all agents and the hub in it."""

    saved: bool
    seconds: float
    ranks_cpu_s: float
    agents_cpu_s: float
    hub_cpu_s: float

    @property
    def cpu_s(self) -> float:
        return self.ranks_cpu_s + self.agents_cpu_s + self.hub_cpu_s


class Meter:
    """Processor time of every process of the job, from the kernel's clock of each (nanoseconds)."""

    def __init__(self, root: int, hub: int, ranks: Sequence[int]) -> None:
        hubs = descendants(hub) | {hub}
        self._groups = (set(ranks), descendants(root) - set(ranks) - hubs, hubs)
        self._last = self._now()

    def _now(self) -> dict[int, float]:
        return {pid: cpu_s(pid) for group in self._groups for pid in group}

    def read(self) -> list[float]:
        """Seconds of the ranks, the agents and the hub since the last call; 0 of a process that has ended."""
        last, self._last = self._last, self._now()
        return [sum(max(0.0, self._last[pid] - last[pid]) for pid in group) for group in self._groups]


def descendants(root: int) -> set[int]:
    """The processes below `root`."""
    tasks = Path(f"/proc/{root}/task").glob("*/children")
    children = {int(pid) for task in tasks for pid in task.read_text().split()}
    return children.union(*map(descendants, children))


def cpu_s(pid: int) -> float:
    """Processor seconds of a process with all its threads (clock_getcpuclockid(3)); 0: it has ended."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


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


def cycles(steps: list[Step], block: int) -> Iterator[tuple[list[Step], list[Step]]]:
    """For each ABBA cycle after warm-up its steps with and without a save; the first step of a block, which
    bears the last save's cost, is left out. What drifts slowly cancels within a cycle."""
    cycle = 4 * block
    for start in range(-(-WARM_STEPS // cycle) * cycle, len(steps) - cycle + 1, cycle):
        inner = [steps[number] for number in range(start, start + cycle) if number % block]
        yield [s for s in inner if s.saved], [s for s in inner if not s.saved]


def time_ratio(saving: list[Step], others: list[Step]) -> float:
    """Median step time with a save over that without."""
    return statistics.median(s.seconds for s in saving) / statistics.median(s.seconds for s in others)


def added_cpu_s(saving: list[Step], others: list[Step], name: str) -> float:
    """Processor seconds that a save adds to a step."""
    return statistics.fmean(getattr(s, name) for s in saving) - statistics.fmean(
        getattr(s, name) for s in others
    )


def bootstrap(values: list[float], rounds: int = 2000) -> tuple[float, float]:
    """95 % interval of the median."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(rounds))
    return medians[int(0.025 * rounds)], medians[int(0.975 * rounds)]


def profiles(url: str, token: str) -> list[dict[str, Any]]:
    """What nodes wrote down when they had learnt their idle spans."""
    store = open_store(url, token=token)
    try:
        kinds = "('replication_schedule', 'replication_unscheduled')"
        rows = store.query(f"SELECT detail FROM events WHERE kind IN {kinds}").to_pylist()
    finally:
        store.close()
    return [json.loads(row["detail"]) for row in rows]


def launch(
    folder: Path,
    mode: str,
    job: argparse.Namespace,
    extra: list[str],
    *,
    script: str = __file__,
    ranks_per_node: int = RANKS_PER_NODE,
) -> tuple[list[Step], Any]:
    """Hub and agents on loopback; ends when the job does. Step times, and what each node learnt of its idle
    spans."""
    program = str(Path(sys.executable).with_name("pulsetrain"))
    env = {
        **os.environ,
        "PULSETRAIN_DATA": str(folder / "hub"),
        "OMP_NUM_THREADS": "1",
        "PULSETRAIN_CHECKPOINT_PERSIST_EVERY": "50",
        "PULSETRAIN_CHECKPOINT_SENDING": "at_once" if mode in ("blocking", "naive") else "interleaved",
        "PULSETRAIN_CHECKPOINT_SHARE_EQUAL": "true" if mode == "default" else "false",
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
        for i in range(job.nodes):
            flags = [
                "--hub",
                address["url"],
                "--nnodes",
                str(job.nodes),
                "--nproc-per-node",
                str(ranks_per_node),
            ]
            flags += ["--job", "bench", "--node", f"n{i}", "--address", f"127.0.0.{i + 2}"]
            flags += ["--data", str(folder / f"n{i}"), "--checkpoints", str(folder / "store")]
            program_of_rank = [
                script,
                mode,
                str(job.block),
                str(os.getpid()),
                str(hub.pid),
                str(folder / "times.json"),
            ]
            program_of_rank += ["--steps", str(job.steps), *extra]
            command = [program, "run", *flags, *program_of_rank]
            token = {"PULSETRAIN_TOKEN": address["token"]}
            agents.append(subprocess.Popen(command, env=env | token, stdout=log, stderr=log))
        for agent in agents:
            if agent.wait():
                text = (folder / "log").read_text(errors="replace")
                raise SystemExit(f"{text[-8000:]}\nan agent ended with status {agent.returncode}")
        steps = [Step(*row) for row in json.loads((folder / "times.json").read_text())]
        return steps, profiles(address["url"], address["token"])
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
    parser.add_argument("--nodes", type=int, default=4, help="local nodes of two ranks each")
    args, extra = parser.parse_known_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # end the job with it
    result: dict[str, Any] = {
        "ranks": args.nodes * RANKS_PER_NODE,
        "cores": os.cpu_count(),
        "steps": args.steps,
    }
    for mode in args.modes.split(","):
        found = measured(mode, args, extra)
        print(json.dumps({"mode": mode, **found}), file=sys.stderr, flush=True)
        result.update({key if mode == MODES[0] else f"{mode}_{key}": value for key, value in found.items()})
    print(json.dumps(result))


def measured(mode: str, job: argparse.Namespace, extra: list[str]) -> dict[str, Any]:
    """One job: the ratio of step times with a save to those without."""
    with tempfile.TemporaryDirectory(prefix="pulsetrain-bench-") as name:
        steps, profiles = launch(Path(name), mode, job, extra)
    parts = list(cycles(steps, job.block))
    ratios = [time_ratio(*part) for part in parts]
    low, high = bootstrap(ratios)
    quiet = [step for _, others in parts for step in others]
    cpu_s = statistics.fmean(step.cpu_s for step in quiet)
    added = {name: [added_cpu_s(*part, name) for part in parts] for name in ("cpu_s", *Step._fields[2:])}
    cpu_ratios = [1 + seconds / cpu_s for seconds in added["cpu_s"]]
    cpu_low, cpu_high = bootstrap(cpu_ratios)
    return {
        "step_ratio": statistics.median(ratios),
        "step_ratio_low": low,
        "step_ratio_high": high,
        "cpu_ratio": statistics.median(cpu_ratios),
        "cpu_ratio_low": cpu_low,
        "cpu_ratio_high": cpu_high,
        "cycles": len(ratios),
        "step_s": statistics.median(step.seconds for step in quiet),
        "cpu_s": cpu_s,
        **{f"save_{name}": statistics.median(seconds) for name, seconds in added.items()},
        **{f"save_{name}_low": bootstrap(seconds)[0] for name, seconds in added.items()},
        **{f"save_{name}_high": bootstrap(seconds)[1] for name, seconds in added.items()},
        "nodes_with_idle_spans": sum(p.get("steady", False) for p in profiles),
        "replica_every_steps": max((p.get("every_steps", 1) for p in profiles), default=0),
    }


if __name__ == "__main__":
    if "RANK" in os.environ:
        rank()
    else:
        main()
