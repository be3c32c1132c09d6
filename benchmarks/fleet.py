"""How the analyzers grow with the fleet: all of them over 200 steps of simulated timings, at four sizes.

    python benchmarks/fleet.py [--ranks 1024,4096,12288,100000] [--steps 200] [--store 12288]

Each size runs in a process of its own, so that its peak memory is its own. The timings are made first and not
counted. With `--store` that size is also written into a store as spans and read back through the queries
(minutes). The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trials import fleets

from pulsetrain.analytics import watch
from pulsetrain.analytics.verdict import Failed, findings
from pulsetrain.simulate.spec import FleetFault


def peak_mib() -> float:
    """The most memory that this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """(result, wall seconds)."""
    began_s = time.perf_counter()
    return call(), time.perf_counter() - began_s


def measure(ranks: int, steps: int) -> dict[str, Any]:
    """All analyzers over one fleet with a slow rank, and the hang verdict over all its heartbeats."""
    fault = FleetFault(kind="straggler", since=steps // 2, numbers={"rank": ranks // 3, "factor": 1.1})
    spec = fleets.spec_of(ranks, steps=steps, faults=(fault,))
    t = fleets.timings_of(spec)
    transfers, members = fleets.transfers_of(spec)
    before = peak_mib()
    verdicts, seconds = timed(lambda: fleets.look(t, transfers, members))
    after = peak_mib()
    view = fleets.stuck(spec, ranks // 3)
    hung, hang_s = timed(lambda: watch.hang(view))
    named = [f"{f.kind} {f.subject_type} {f.subject}" for v in verdicts.values() for f in findings(v)]
    return {
        "ranks": spec.ranks,
        "steps": steps,
        "analyzers_s": round(seconds, 2),
        "hang_s": round(hang_s, 2),
        "timings_mib": round(before),
        "peak_mib": round(after),
        "named": sorted(named),
        "hung": sorted(f.subject for f in findings(hung)),
        "failed": [v.error for vs in verdicts.values() for v in vs if isinstance(v, Failed)],
    }


def through_store(ranks: int, steps: int) -> dict[str, Any]:
    """The same fleet as spans in a chDB store: how long writing takes, and one look of every analyzer."""
    from pulsetrain.analytics.analyze import analyze
    from pulsetrain.simulate.telemetry import telemetry
    from pulsetrain.stream.store.clickhouse import open_store

    fault = FleetFault(kind="straggler", since=steps // 2, numbers={"rank": ranks // 3, "factor": 1.1})
    spec = fleets.spec_of(ranks, steps=steps, faults=(fault,))
    with tempfile.TemporaryDirectory(prefix="fleet-") as folder:
        store = open_store(f"chdb://{Path(folder) / 'store'}")
        store.migrate()
        rows, began_s = 0, time.perf_counter()
        for record, table in telemetry(spec):
            store.insert(record, table)
            rows += table.num_rows
        write_s = time.perf_counter() - began_s
        answers, look_s = timed(lambda: analyze(store, spec.job, now_ns=spec.start_ns))
        store.close()
    return {
        "ranks": spec.ranks,
        "rows": rows,
        "write_s": round(write_s, 1),
        "look_s": round(look_s, 2),
        "peak_mib": round(peak_mib()),
        "named": sorted(f"{f.kind} {f.subject_type} {f.subject}" for f in findings(answers)),
        "failed": [v.error for v in answers if isinstance(v, Failed)],
    }


def apart(*arguments: str) -> dict[str, Any]:
    """The result of this file run again with other arguments."""
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Run every size, print a line for each, and one JSON object last."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", default="1024,4096,12288,100000", help="sizes, with commas between")
    parser.add_argument("--steps", type=int, default=200, help="steps of each fleet")
    parser.add_argument(
        "--store", type=int, default=0, metavar="RANKS", help="also through a store, this size"
    )
    parser.add_argument("--one", choices=("memory", "store"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        work = measure if args.one == "memory" else through_store
        print(json.dumps(work(int(args.ranks), args.steps)))
        return
    sizes = []
    for ranks in args.ranks.split(","):
        row = apart("--one", "memory", "--ranks", ranks, "--steps", str(args.steps))
        sizes.append(row)
        print(
            f"{row['ranks']} ranks x {row['steps']} steps: {row['analyzers_s']} s, hang {row['hang_s']} s, "
            f"peak {row['peak_mib']} MiB ({row['timings_mib']} MiB before); {', '.join(row['named'])}",
            flush=True,
        )
    stored = None
    if args.store:
        stored = apart("--one", "store", "--ranks", str(args.store), "--steps", str(args.steps))
        print(f"through the store: {stored['rows']} rows, {stored['look_s']} s, {stored['peak_mib']} MiB")
    print(json.dumps({"benchmark": "fleet", "simulated": True, "sizes": sizes, "store": stored}))


if __name__ == "__main__":
    main()
