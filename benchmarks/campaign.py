"""How often the detectors are right, on real faults in jobs of eight processes and on simulated fleets.

    python benchmarks/campaign.py [--trials 200] [--seconds 1500] [--seed 0] [--resume FILE]
    python benchmarks/campaign.py --quick
    python benchmarks/campaign.py --fleet-only
    python benchmarks/campaign.py --jobs [--trials 96] [--seconds 3600] [--resume FILE]

Each session is one launch of benchmarks/trials/job.py with a plan of faults that is deterministic by (rank,
step). It has several faults that pass, clean steps between them, and sometimes a fault that ends the job. The
verdicts are compared with the faults.

`--jobs` deals faults out over the untouched scripts of benchmarks/jobs, under a real hub, with inferred
phases and with `--no-auto`. Detectors are tuned on one half of these jobs. The other half is reported by
itself.

With `--seconds` no session begins after that time. `--resume` keeps finished sessions in a file and goes on
from there. With `--part` several processes share the sessions. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trials import fleets, kinds, report
from trials.session import Bench
from trials.watching import Timetable, Watching, timetable

PASSING_A_SESSION = 3
CLEAN_A_SESSION = 6
FLEETS = (1024, 12288)
QUICK = ("sigkill", "sigstop", "slow_rank_1.3x", "nan")


def plan(trials: int, seed: int, clean: int) -> list[Timetable]:
    """Return the sessions of a campaign. Faults that pass are spread over those that end with an ending one.

    `clean` windows beyond those before each fault have sessions of their own. Every other one of these
    computes on the processors themselves, with eight ranks on the cores that there are.
    """
    import random

    faults = [kind for kind, count in kinds.counts(trials).items() for _ in range(count)]
    random.Random(seed).shuffle(faults)
    probe = {kind: make(random.Random(0), 100) for kind, make in kinds.KINDS.items()}
    ending = [kind for kind in faults if probe[kind].ends]
    passing = [kind for kind in faults if not probe[kind].ends]
    count = max(len(ending), -(-len(passing) // PASSING_A_SESSION))
    by_session: list[list[str]] = [passing[i::count] + ending[i : i + 1] for i in range(count)]
    tables = [timetable(i, "device", kinds_, seed=seed) for i, kinds_ in enumerate(by_session)]
    left = max(0, clean - trials)
    quiet = [
        timetable(count + i, "host" if i % 2 else "device", (), seed=seed, clean=CLEAN_A_SESSION)
        for i in range(-(-left // CLEAN_A_SESSION))
    ]
    mixed = list(tables)
    for i, table in enumerate(quiet):  # spread evenly, so that a campaign that is cut short has both
        mixed.insert(min(len(mixed), (i + 1) * (len(tables) + len(quiet)) // (len(quiet) + 1)), table)
    return mixed


def run(tables: Iterable[Timetable], *, until_s: float, kept: Path | None) -> list[dict[str, Any]]:
    """Return the rows of all sessions, those of finished ones from `kept`. None begins after `until_s`."""
    tables = list(tables)
    rows = read(kept)
    done = {row["session"] for row in rows if row["what"] == "session"}
    bench = Bench()
    try:
        for table in tables:
            if table.number in done:
                continue
            if time.monotonic() >= until_s:
                print(f"out of time: {len(done)} of {len(tables)} sessions are done", flush=True)
                break
            fresh = Watching(bench=bench, table=table).run()
            rows += fresh
            done.add(table.number)
            keep(kept, fresh)
            print(report.progress(fresh, len(done), len(tables)), flush=True)
    finally:
        bench.close()
    return rows


def read(path: Path | None) -> list[dict[str, Any]]:
    """Return the rows of an earlier run."""
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def keep(path: Path | None, rows: Iterable[dict[str, Any]]) -> None:
    """Add a session's rows."""
    if path is not None:
        with path.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=200, help="faults in all")
    parser.add_argument("--clean", type=int, default=300, help="clean windows in all")
    parser.add_argument("--seconds", type=float, default=1500.0, help="begin no session after this time")
    parser.add_argument("--seed", type=int, default=0, help="of places and times of the faults")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep sessions here and go on from it")
    parser.add_argument(
        "--part", default="0/1", metavar="I/N", help="only every N-th session, from the I-th on"
    )
    parser.add_argument("--calibrate", type=Path, metavar="CSV", help="write the calibration table here")
    parser.add_argument("--only", action="append", metavar="KIND", help="only this kind, --trials times")
    parser.add_argument("--jobs", action="store_true", help="over the scripts of benchmarks/jobs")
    parser.add_argument("--quick", action="store_true", help="four trials and four clean windows")
    parser.add_argument("--fleet-only", action="store_true", help="no real job, only generated fleets")
    parser.add_argument("--fleets", type=int, default=3, help="fleets for each kind of fault and size")
    parser.add_argument("--no-fleet", action="store_true", help="no generated fleets")
    return parser.parse_args()


def chosen(args: argparse.Namespace) -> list[Timetable]:
    """Return the sessions that the command line names."""
    if args.quick:
        return [timetable(0, "device", QUICK[1:] + QUICK[:1], seed=args.seed)]
    if args.only:
        repeated = [kind for kind in args.only for _ in range(args.trials)]
        return [timetable(i, "device", [kind], seed=args.seed) for i, kind in enumerate(repeated)]
    return plan(args.trials, args.seed, args.clean)


def generated(args: argparse.Namespace, until_s: float) -> dict[str, Any]:
    """Return the same tables for simulated fleets, by size. None is begun after `until_s`."""
    sizes = {}
    for ranks in FLEETS:
        began_s, rows = time.monotonic(), []
        for row in fleets.trials(ranks, args.fleets, args.seed):
            rows.append(row)
            print(f"fleet of {ranks}: {row.get('kind', 'clean')}", flush=True)
            if time.monotonic() >= until_s:
                print(f"out of time: {len(rows)} fleets of {ranks} ranks are done", flush=True)
                break
        sizes[str(ranks)] = report.result(rows, sessions=0, wall_s=time.monotonic() - began_s)
    return sizes


def over_jobs(args: argparse.Namespace, *, until_s: float) -> None:
    """Run the campaign over the scripts of benchmarks/jobs. Print both halves, and one JSON object last."""
    from anyjob import halves

    trials = halves.QUICK_TRIALS if args.quick else args.trials
    result = halves.campaign(trials, args.seed, until_s=until_s, kept=args.resume, only=args.only)
    for name in halves.HALVES:
        print(f"\n{name}: {', '.join(result['of'][name])}")
        print(*report.lines(result[name]), sep="\n")
    print(json.dumps(result))


def main() -> None:
    """Run the campaign. Print the tables, and one JSON object last."""
    args = arguments()
    began_s = time.monotonic()
    if args.jobs:
        over_jobs(args, until_s=began_s + args.seconds)
        return
    rows: list[dict[str, Any]] = []
    tables: list[Timetable] = []
    if not args.fleet_only:
        part, parts = (int(number) for number in args.part.split("/"))
        tables = chosen(args)[part::parts]
        rows = run(tables, until_s=began_s + args.seconds, kept=args.resume)
    skipped = args.no_fleet or args.quick or args.only
    sizes = {} if skipped else generated(args, began_s + args.seconds)
    if args.calibrate is not None:
        args.calibrate.write_text(report.table(rows, f"{len(rows)} rows of seed {args.seed}"))
    result = report.result(rows, sessions=len(tables), wall_s=time.monotonic() - began_s)
    result["fleets"] = sizes
    if rows:
        print("\nreal processes")
        print(*report.lines(result), sep="\n")
    for ranks, size in sizes.items():
        print(f"\nsimulated fleet of {ranks} ranks x {fleets.STEPS} steps")
        print(*report.lines(size), sep="\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
