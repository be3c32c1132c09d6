"""Time of `pulsetrain whatif`, start-up included, on a trace and on that trace repeated.

    python benchmarks/whatif.py [TRACE.parquet] [--repeat 1,10,100]

Without a trace, one of DP4 PP4 with 32 microbatches and 44 steps is generated. Repeating appends the steps
again under new numbers. Prints one JSON object as its last line:
{"trace", "rows": {repeat: rows}, "seconds": {repeat: best of three}, "peak_mib": {repeat: ...}, "S"}.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

ROOT = Path(__file__).parents[1]


def repeated(table: pa.Table, times: int) -> pa.Table:
    """Return the steps of `table`, repeated under new step numbers."""
    place = table.column_names.index("step")
    span = pc.max(table["step"]).as_py() + 1
    copies = (
        table.set_column(place, "step", pc.add(table["step"], pa.scalar(i * span, table["step"].type)))
        for i in range(times)
    )
    return pa.concat_tables(copies)


def timed(path: Path) -> tuple[float, float, dict[str, object]]:
    """Return wall seconds, peak MiB and the answer of one run of the command."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "pulsetrain.cli", "whatif", str(path), "--json"],
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    if status != 0:
        raise SystemExit(f"whatif failed on {path}")
    return seconds, usage.ru_maxrss / 1024, json.loads(output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("trace", nargs="?", type=Path)
    parser.add_argument("--repeat", default="1,10,100")
    options = parser.parse_args()
    if options.trace is None:
        sys.path.insert(0, str(ROOT))
        from tests.analytics.pipelines import Pipeline

        table = Pipeline(
            replicas=4, stages=4, microbatches=32, steps=44, jitter=0.03, slow={(0, 0): 2.0}
        ).table()
    else:
        table = parquet.read_table(options.trace)
    rows: dict[str, int] = {}
    seconds: dict[str, float] = {}
    peaks: dict[str, float] = {}
    slow_down: object = None
    with tempfile.TemporaryDirectory() as folder:
        for times in [int(part) for part in options.repeat.split(",")]:
            path = Path(folder) / f"{times}.parquet"
            longer = repeated(table, times)
            parquet.write_table(longer, path)
            runs = [timed(path) for _ in range(3)]
            rows[str(times)] = longer.num_rows
            seconds[str(times)] = round(min(run[0] for run in runs), 3)
            peaks[str(times)] = round(max(run[1] for run in runs))
            slow_down = runs[0][2]["S"]
            print(f"x{times}: {longer.num_rows} rows in {seconds[str(times)]} s, {peaks[str(times)]} MiB")
    trace = "made up" if options.trace is None else options.trace.name
    print(json.dumps({"trace": trace, "rows": rows, "seconds": seconds, "peak_mib": peaks, "S": slow_down}))


if __name__ == "__main__":
    main()
