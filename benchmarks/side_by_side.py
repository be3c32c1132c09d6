"""Pulsetrain and other tools on the same shared recordings.

    python benchmarks/side_by_side.py [--data DIR] [--peers PYTHON]

`PYTHON` is an interpreter in which the other tools are installed. Any of them may be missing.
docs/side-by-side.md says how to make one. By default it is this interpreter. It has PyTorch's analyzer alone.

Prints a table, and one JSON object as its last line:
{"ours": {recording: answer}, "peers": {name: {"version", "answers"} or the reason why there is none}}.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PEERS = ("fr_trace", "nvidia_resiliency_ext", "holistic_trace_analysis")


def ours(*arguments: str) -> tuple[Any, float]:
    """Return the answer of a command with --json, and its seconds with start-up."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "pulsetrain.cli", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"pulsetrain {' '.join(arguments)}: {done.stderr.strip()}")
    return json.loads(done.stdout), round(time.perf_counter() - began, 2)


def our_answers(data: Path) -> dict[str, Any]:
    """Return the answers of Pulsetrain for each recording."""
    answers: dict[str, Any] = {}
    truth = json.loads((data / "flight-recorder" / "truth.json").read_text())
    for case in sorted(truth):
        verdict, seconds = ours("hang", str(data / "flight-recorder" / case))
        answers[case] = {
            "named": verdict["culprits"],
            "verdict": verdict["verdict"],
            "truth": sorted(truth[case]["culprits"]),
            "seconds": seconds,
        }
    (steps,) = (data / "fail-slow").glob("*.csv")
    findings, seconds = ours("failslow", str(steps))
    windows = [{"subject": f["subject"], **f["evidence"]} for f in findings]
    keys = ("subject", "first_step", "last_step", "slow_ratio")
    answers["fail-slow"] = {"named": [{k: w.get(k) for k in keys} for w in windows], "seconds": seconds}
    whatif, seconds = ours("whatif", str(data / "what-if-AR" / "trace-AR.parquet"))
    slowest = sorted(whatif["by_worker"].items(), key=lambda item: -item[1])[:3]
    answers["what-if-AR"] = {"slowdown": dict(slowest), "S": whatif["S"], "seconds": seconds}
    return answers


def peer_answer(python: str, name: str, data: Path) -> dict[str, Any]:
    """Return the answers of another tool from its own interpreter, or the reason why there are none."""
    command = [python, str(ROOT / "benchmarks" / "peers" / "adapters.py"), name, str(data)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"missing": str(error)}
    except (ValueError, IndexError):
        return {"missing": (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]}


def table(answers: dict[str, Any], peers: dict[str, Any]) -> list[str]:
    """Return whom each tool names, by recording."""
    lines = []
    for case, own in answers.items():
        if "truth" in own:
            peer = peers["fr_trace"].get("answers", {}).get(case, {}).get("named", "not run")
            lines.append(f"{case}: truth {own['truth']}; pulsetrain {own['named']}; fr_trace {peer}")
    slow = peers["nvidia_resiliency_ext"].get("answers", {})
    lines.append(f"fail-slow: pulsetrain {answers['fail-slow']['named']}")
    for window, scores in slow.get("fail-slow", {}).items():
        lines.append(
            f"fail-slow: nvidia-resiliency-ext, {window}: relative {scores['relative']}, "
            f"individual {scores['individual']}"
        )
    hta = peers["holistic_trace_analysis"].get("answers", {}).get("what-if-AR", {}).get("named", "not run")
    flagged = slow.get("what-if-AR", {}).get("flagged", "not run")
    lines.append(
        f"what-if-AR: pulsetrain slowdown by worker {answers['what-if-AR']['slowdown']}; "
        f"nvidia-resiliency-ext {flagged}; HolisticTraceAnalysis {hta}"
    )
    return lines


def main() -> None:
    default = os.environ.get("PULSETRAIN_TEST_DATA", str(ROOT.parent / "shared" / "data"))
    parser = argparse.ArgumentParser(description="Pulsetrain and other tools on the same recordings.")
    parser.add_argument("--data", type=Path, default=Path(default))
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON")
    options = parser.parse_args()
    if not options.data.is_dir():
        print(json.dumps({"skipped": f"no recordings in {options.data}"}))
        return
    answers = our_answers(options.data)
    peers = {name: peer_answer(options.peers, name, options.data) for name in PEERS}
    for line in table(answers, peers):
        print(line)
    print(json.dumps({"ours": answers, "peers": peers}))


if __name__ == "__main__":
    main()
