"""What other tools say of the shared recordings. Runs in any Python in which they are installed:

    PYTHON benchmarks/peers/adapters.py {fr_trace|nvidia_resiliency_ext|holistic_trace_analysis} DATA

Prints one JSON object: {"version", "answers"}, or {"missing": why}. Their own functions decide; what is done
here is to hand them the recording in the form that they take. Nothing of Pulsetrain is imported.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WINDOWS = (10, 25)  # iterations that one report of nvidia-resiliency-ext covers: both are tried
PROFILED = ("forward-compute", "backward-compute")


def fr_trace(data: Path) -> dict[str, Any]:
    """PyTorch's flight-recorder analyzer; it names "missing ranks" collective by collective."""
    import torch

    answers = {}
    for case in sorted(p for p in (data / "flight-recorder").iterdir() if p.is_dir()):
        command = [
            sys.executable,
            "-m",
            "torch.distributed.flight_recorder.fr_trace",
            "-p",
            "_dump_",
            str(case),
        ]
        began = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        text = done.stdout + done.stderr
        sets = [
            {int(n) for n in re.findall(r"\d+", m)} for m in re.findall(r"missing ranks: \{([^}]*)\}", text)
        ]
        named = sorted(set().union(*sets)) if sets else []
        seconds = round(time.perf_counter() - began, 2)
        answers[case.name] = {
            "named": named,
            "statements": len(sets),
            "status": done.returncode,
            "seconds": seconds,
        }
    return {"version": f"torch {torch.__version__}", "answers": answers}


# -- nvidia-resiliency-ext --------------------------------------------------------------------------------


def nvidia_resiliency_ext(data: Path) -> dict[str, Any]:
    """Its section scores with its default threshold 0.75: against a rank's own history by `generate_report`,
    against the best rank by the same class, with the minimum over ranks taken here.
    """
    from nvidia_resiliency_ext.straggler.reporting import ReportGenerator

    return {
        "version": importlib.metadata.version("nvidia-resiliency-ext"),
        "answers": {
            "fail-slow": {
                f"windows of {n}": _scores_of_iterations(data, n, ReportGenerator) for n in WINDOWS
            },
            "what-if-AR": _scores_of_ops(data, ReportGenerator),
        },
    }


def _summary(times: list[float]) -> dict[Any, float]:
    from nvidia_resiliency_ext.straggler.statistics import Statistic

    return {
        Statistic.MED: statistics.median(times),
        Statistic.AVG: statistics.fmean(times),
        Statistic.NUM: float(len(times)),
    }


def _scores_of_iterations(data: Path, size: int, generator: Any) -> dict[str, Any]:
    import pandas as pd

    (path,) = (data / "fail-slow").glob("*.csv")
    table = pd.read_csv(path)
    workers = {w: part.batch_time_norm.tolist() for w, part in table.groupby("worker")}
    own = {w: generator(["individual_perf_scores"]) for w in workers}
    relative: dict[int, list[int]] = {w: [] for w in workers}
    individual: dict[int, list[int]] = {w: [] for w in workers}
    lowest = dict.fromkeys(workers, 1.0)
    windows = min(len(t) for t in workers.values()) // size
    for window in range(windows):
        part = {
            w: {"iteration": _summary(t[window * size : (window + 1) * size])} for w, t in workers.items()
        }
        best = {"iteration": min(next(iter(p["iteration"].values())) for p in part.values())}
        for worker, sections in part.items():
            report = own[worker].generate_report(sections, {})
            if report.section_individual_perf_scores["iteration"][0] < 0.75:
                individual[worker].append(window)
            score = own[worker]._compute_sections_perf_scores(sections, best)["iteration"]
            lowest[worker] = min(lowest[worker], round(score, 3))
            if score < 0.75:
                relative[worker].append(window)
    return {
        "windows": windows,
        "relative": _flagged(relative),
        "individual": _flagged(individual),
        "lowest_relative": {str(worker): score for worker, score in lowest.items()},
    }


def _flagged(found: dict[int, list[int]]) -> dict[str, list[int]]:
    return {str(worker): windows for worker, windows in found.items() if windows}


def _scores_of_ops(data: Path, generator: Any) -> dict[str, Any]:
    import pandas as pd

    table = pd.read_parquet(data / "what-if-AR" / "trace-AR.parquet")
    table = table[table.optype.isin(PROFILED)]
    sections = {
        int(rank): {str(op): _summary(p.duration.tolist()) for op, p in part.groupby("optype", observed=True)}
        for rank, part in table.groupby("rank")
    }
    best = {op: min(next(iter(s[op].values())) for s in sections.values()) for op in PROFILED}
    one = generator(["relative_perf_scores"])
    scores = {rank: one._compute_sections_perf_scores(s, best) for rank, s in sections.items()}
    flagged = sorted(rank for rank, s in scores.items() if min(s.values()) < 0.75)
    return {
        "flagged": flagged,
        "scores": {str(r): {op: round(v, 3) for op, v in s.items()} for r, s in scores.items()},
    }


# -- HolisticTraceAnalysis --------------------------------------------------------------------------------


def holistic_trace_analysis(data: Path) -> dict[str, Any]:
    """Its straggler call, on the rows of the trace instead of a Kineto file, step by step as it does itself.
    Communication is named as it wants it (ncclKernel_...), each kind of operation on a stream of its own."""
    import pandas as pd
    from hta.analyzers.straggler import find_stragglers_with_late_start_comm_kernels as find
    from hta.common.trace_symbol_table import TraceSymbolTable

    table = pd.read_parquet(data / "what-if-AR" / "trace-AR.parquet")
    names = [f"{'' if 'compute' in op else 'ncclKernel_'}{op}" for op in table.optype.cat.categories]
    symbols = TraceSymbolTable()
    symbols.add_symbols(names)
    ids = symbols.get_sym_id_map()
    frame = pd.DataFrame(
        {
            "rank": table["rank"].astype(int),
            "iteration": table.step.astype(int),
            "stream": table.optype.cat.codes.astype(int) + 1,
            "ts": table.start_ts * 1e6,
            "dur": table.duration * 1e6,
            "name": [ids[names[code]] for code in table.optype.cat.codes],
        }
    )
    votes: dict[int, int] = {}
    for _, step in frame.groupby("iteration"):
        for rank, count in find(step, symbols).items():
            votes[int(rank)] = votes.get(int(rank), 0) + int(count)
    ranked = sorted(votes, key=lambda r: (-votes[r], r))
    answer = {
        "named": ranked[:2],
        "votes": {str(r): votes[r] for r in ranked if votes[r]},
        "steps": frame.iteration.nunique(),
    }
    return {"version": importlib.metadata.version("HolisticTraceAnalysis"), "answers": {"what-if-AR": answer}}


PEERS = {f.__name__: f for f in (fr_trace, nvidia_resiliency_ext, holistic_trace_analysis)}

if __name__ == "__main__":
    try:
        print(json.dumps(PEERS[sys.argv[1]](Path(sys.argv[2]))))
    except ImportError as error:
        print(json.dumps({"missing": f"not installed: {error}"}))
