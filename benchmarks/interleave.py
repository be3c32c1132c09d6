"""Sending replicas in idle network spans, at once, or while training waits, on a network that is the limit.

    python benchmarks/interleave.py [--rate 1gbit] [--nodes 4] [--steps 160] [--layers 8] [--compute-s 0.05]
                                    [--layer-kib 768] [--state-mib 6] [--modes interleaved,naive,blocking]

The ablation of Gemini's figure 16 at the size of one machine. Everything runs in a network namespace of its
own whose loopback passes `--rate` for all nodes together (Linux's token bucket; needs root, ip, tc and
unshare). Agents, arenas, peers and gloo are real. The accelerator is not: in each layer a rank waits as long
as a device would compute, then all-reduces that layer's share, as sharded training does layer by layer,
forward and backward. Blocks of steps save and do not save in turn (ABBA); each mode is a job of its own.
Prints one JSON object as its last line: for each mode the ratio of step times with its 95 % bootstrap
interval.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from checkpoint_job import Step, bootstrap, cycles, launch, leave_together, saves, time_ratio

MODES = ("interleaved", "naive", "blocking")
SHAPE = (
    "ip link set lo up && tc qdisc add dev lo root tbf rate {rate} burst 512kb latency 200ms"
    ' && INTERLEAVE_SHAPED=1 exec "$@"'
)


def flags() -> argparse.ArgumentParser:
    """Flags that the launcher and its ranks share."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--layers", type=int, default=8, help="spans of computing in a step")
    parser.add_argument("--compute-s", type=float, default=0.05, help="of one layer, in seconds")
    parser.add_argument("--layer-kib", type=int, default=768, help="what a layer all-reduces")
    parser.add_argument("--state-mib", type=float, default=6.0, help="what a rank saves")
    return parser


def rank() -> None:
    """One rank; rank 0 writes its step times."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    import pulsetrain

    mode, block, _root, _hub, out = (sys.argv.pop(1) for _ in range(5))
    args = flags().parse_args()
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    state = {"weights": torch.rand(int(args.state_mib * (1 << 18)))}
    layer = torch.zeros(args.layer_kib << 8)
    watch, checkpointer = pulsetrain.init(mesh=mesh), pulsetrain.Checkpointer(state)
    checkpointer.restore()
    steps: list[Step] = []
    for step in range(args.steps):
        began = time.perf_counter()
        for number in range(args.layers):
            with watch.phase("forward" if number < args.layers // 2 else "backward"):
                time.sleep(args.compute_s)  # the accelerator
            dist.all_reduce(layer)
        checkpointer.wait()  # as before an optimizer
        state["weights"].add_(1e-3)
        watch.step()
        if saves(step, int(block)):
            result = checkpointer.save(step)
            if mode == "blocking":
                result.wait_replicated(30)
        steps.append(Step(saves(step, int(block)), time.perf_counter() - began, 0.0, 0.0, 0.0))
    checkpointer.wait()
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps(steps))
    leave_together()


def in_namespace(rate: str) -> None:
    """Run this program again where loopback is a link of `rate`; returns only there. Where that is not
    allowed, says so as its result."""
    if os.environ.get("INTERLEAVE_SHAPED"):
        return
    missing = [tool for tool in ("unshare", "ip", "tc") if shutil.which(tool) is None]
    if os.geteuid():
        missing.append("root")
    if missing:
        print(json.dumps({"benchmark": "interleave", "missing": missing}))
        raise SystemExit(0)
    shell = ["unshare", "--net", "bash", "-c", SHAPE.format(rate=rate), "_"]
    os.execvp(shell[0], [*shell, sys.executable, *sys.argv])


def measured(mode: str, args: argparse.Namespace) -> dict[str, Any]:
    """One job: the ratio of step times with a save to those without, and what was planned."""
    extra = ["--layers", args.layers, "--compute-s", args.compute_s]
    extra += ["--layer-kib", args.layer_kib, "--state-mib", args.state_mib]
    with tempfile.TemporaryDirectory(prefix="pulsetrain-bench-") as name:
        steps, plans = launch(
            Path(name), mode, args, [str(word) for word in extra], script=__file__, ranks_per_node=1
        )
    parts = list(cycles(steps, args.block))
    ratios = [time_ratio(*part) for part in parts]
    low, high = bootstrap(ratios)
    return {
        "step_ratio": statistics.median(ratios),
        "step_ratio_low": low,
        "step_ratio_high": high,
        "cycles": len(ratios),
        "step_s": statistics.median(s.seconds for _, others in parts for s in others),
        "plans": plans,
    }


def main() -> None:
    """Every mode, a line for each, and one JSON object last."""
    parser = flags()
    parser.add_argument("--rate", default="1gbit", help="of the link that all nodes share, as tc(8) has it")
    parser.add_argument("--nodes", type=int, default=4, help="local nodes of one rank each")
    parser.add_argument("--block", type=int, default=4, help="steps that save, or do not, in a row")
    parser.add_argument("--modes", default=",".join(MODES), help="which, with commas between")
    args = parser.parse_args()
    in_namespace(args.rate)
    result: dict[str, Any] = {"benchmark": "interleave", "rate": args.rate, "accelerator": "simulated"}
    for mode in args.modes.split(","):
        result[mode] = measured(mode, args)
        print(json.dumps({"mode": mode, **result[mode]}), file=sys.stderr, flush=True)
    print(json.dumps(result))


if __name__ == "__main__":
    if "RANK" in os.environ:
        rank()
    else:
        main()
