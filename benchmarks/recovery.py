"""How soon a killed rank is named and training again, in place, on real processes.

    python benchmarks/recovery.py [--kills 3] [--steps 200]

The demo's cluster (four nodes of two ranks, a standby, the hub and its dashboard on the same cores) trains
examples/train_gpt.py; one rank after another gets SIGKILL in mid-step and its job is relaunched on the same
nodes. Prints each recovery's stages, and one JSON object as its last line: the medians and the worst, and
their ratios to the limits (named within 1 s, training within 5 s). Exit status 1 where a kill was not named
or cost more than one step.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import sys
import tempfile
import uuid
from pathlib import Path

from pulsetrain.agent.local_hub import local_hub
from pulsetrain.demo import cluster, reaper, score
from pulsetrain.demo.cluster import JOB, NODES, Cluster
from pulsetrain.demo.job_monitor import JobMonitor
from pulsetrain.demo.main import Timeline
from pulsetrain.demo.scenario import DEATH_KINDS, GAP_S, GAP_STEPS, Scenario
from pulsetrain.faults import outside

DETECT_S, RESUME_S = 1.0, 5.0
RESTARTS = 3  # that a job has unless it is told otherwise


class Deaths(Scenario):
    """A job whose ranks die one by one."""

    def train(self, steps: int) -> None:
        """Wait until so many more steps are done."""
        self._reach(self.status.step + steps, "train on", GAP_S)

    def kill_a_rank(self, node: str) -> score.Outcome:
        """SIGKILL to the last rank of a node, whose agent lives on."""
        ranks = outside.ranks_below(self.cluster.pid(node))
        rank = max(ranks)
        injection = self._injection("killed_rank", f"rank {rank}", DEATH_KINDS, {("rank", str(rank))})
        self.say("fault", f"SIGKILL to rank {rank} on {node}")
        outside.send([ranks[rank]], signal.SIGKILL)
        return self._recovered(injection)


def watch(kills: int, steps: int) -> tuple[list[score.Outcome], list[dict[str, object]]]:
    """Train and kill; what became of each kill, and the recoveries as they were recorded."""
    script = [str(cluster.find_script()), "--tp", "2", "--pp", "2", "--dp", "2", "--device", "cpu"]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pulsetrain-bench-")))
        mark = uuid.uuid4().hex
        stack.enter_context(reaper.reaper(mark))
        os.environ[reaper.MARK] = mark
        hub = stack.enter_context(local_hub(folder / "hub"))
        say = Timeline(print)
        monitor = JobMonitor.of_hub(hub.address, JOB, say)
        stack.callback(monitor.close)
        nodes = Cluster(folder, hub.address, [*script, "--steps", str(steps)], mark)
        stack.callback(nodes.close)
        scenario = Deaths(cluster=nodes, monitor=monitor, job=JOB, steps=steps, say=say)
        scenario.start()
        outcomes = []
        for number in range(kills):
            scenario.train(GAP_STEPS)
            outcomes.append(scenario.kill_a_rank(NODES[number % len(NODES)]))
        scenario.train(1)
        return outcomes, monitor.recoveries


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--kills", type=int, default=RESTARTS, choices=range(1, RESTARTS + 1))
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    outcomes, recoveries = watch(options.kills, options.steps)
    print("\n".join(["", *score.fault_table(outcomes), "", *score.stage_table(recoveries), ""]))
    detected = [o.detected_s for o in outcomes if o.correct and o.detected_s is not None]
    resumed = [o.resumed_s for o in outcomes if o.resumed_s is not None]
    lost = [o.lost_steps for o in outcomes if o.lost_steps is not None]
    whole = len(detected) == len(resumed) == len(lost) == options.kills and max(lost) <= 1
    result = {
        "kills": options.kills,
        "named": len(detected),
        "detected_s": round(statistics.median(detected), 3) if detected else None,
        "detected_worst_ratio": round(max(detected) / DETECT_S, 3) if detected else None,
        "resumed_s": round(statistics.median(resumed), 3) if resumed else None,
        "resumed_worst_ratio": round(max(resumed) / RESUME_S, 3) if resumed else None,
        "lost_steps_worst": max(lost, default=None),
        "cores": os.cpu_count(),
        "backend": "gloo",
    }
    print(json.dumps(result))
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
