"""The laws that every analyzer obeys: one test for each law, over all analyzers.

A case is an analyzer on data with a fault of a given size, as columns of rows.
"""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.analytics.machines import gpu_health, hardware, logs, network
from pulsetrain.analytics.slowness import fail_slow, imbalance, links, mfu, stalls, straggler
from pulsetrain.analytics.slowness.timings import COMPUTED, Timings
from pulsetrain.analytics.slowness.transfers import transfers_from
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, findings
from pulsetrain.records.kernel_log import KernelLine
from tests.analytics.fleet import fleet, timings, with_share
from tests.analytics.machines import gpu_rows, ports
from tests.analytics.machines.test_logs import job as lines_of_a_job
from tests.analytics.slowness.test_links import GROUPS, JOB, transfers

Columns = dict[str, np.ndarray]
SEVERITIES = {"info": 1, "warning": 2, "critical": 3}
RANKS = np.array([30, 7, 19, 4, 11, 2, 23, 8])
S = 10**9


@dataclass(frozen=True, kw_only=True)
class Case:
    """An analyzer, and what its data look like without a fault (size 0) and with worse and worse ones."""

    find: Callable[[Columns], list]
    find_in: Callable[[Timings], list] | None = None
    columns: Callable[[float], Columns]
    sizes: tuple[float, ...]
    subject: str
    rename: Callable[[Columns], Columns]
    renamed: str
    numbers: tuple[str, ...] = ()
    doubled_is_same: bool = True

    @property
    def planted(self) -> Columns:
        return self.columns(self.sizes[-2])


# -- analyzers of steps ------------------------------------------------------------------------------------


def of_steps(find, plant, sizes, *, subject="2", renamed=None, numbers=("compute", "duration_ns")):
    """An analyzer of timings; a finding that names a rank is on rank 2, which is called 19."""
    return Case(
        find=lambda columns: find(timings(columns)),
        find_in=find,
        columns=plant,
        sizes=sizes,
        subject=subject,
        rename=lambda columns: {**columns, "rank": RANKS[columns["rank"]]},
        renamed=renamed or str(RANKS[2]),
        numbers=numbers,
    )


def slow_rank(size, **more):
    return fleet(per_node=1, slow={2: 1 + size}, **{"steps": 60} | more)


def losing(part):
    return lambda size: with_share(fleet(steps=60, per_node=1), part, min(size, 0.9), [2])


def uneven_sequences(size):
    columns = fleet(steps=60)
    drawn = np.exp(size * np.random.default_rng(0).standard_normal((60, columns["dp"].max() + 1)))
    work = drawn[columns["step"], columns["dp"]]
    return {**columns, **{part: columns[part] * work for part in COMPUTED}}


def slower_job(size):
    return fleet(steps=120, noise=0.01, everyone=np.where(np.arange(120) < 80, 1.0, 1 + size))


def slow_group(size):
    table = transfers(slow=["dp:3"], ratio=1 + size)
    return {name: np.array(table[name].to_pylist()) for name in table.column_names}


def renamed_group(columns):
    names = {group: f"{group.split(':')[0]}:{100 + i}" for i, group in enumerate(GROUPS)}
    return {**columns, "group": np.array([names[g] for g in columns["group"]])}


SIZES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
CASES = {
    "straggler": of_steps(straggler.find, slow_rank, SIZES),
    "fail_slow": of_steps(
        partial(fail_slow.find, recovered=False), partial(slow_rank, steps=120, slow_from=60), SIZES
    ),
    "data_stall": of_steps(partial(stalls.find, stall=stalls.DATA), losing("data"), SIZES),
    "gc_pause": of_steps(partial(stalls.find, stall=stalls.GC), losing("gc"), SIZES),
    "stage_imbalance": of_steps(
        imbalance.stages,
        lambda size: fleet(steps=60, stage_ratio={1: 1 + size}),
        SIZES,
        subject="1",
        renamed="1",
    ),
    "sequence_imbalance": of_steps(
        imbalance.sequences, uneven_sequences, SIZES, subject="j", renamed="j", numbers=COMPUTED
    ),
    "mfu": of_steps(mfu.find, slower_job, SIZES, subject="j", renamed="j", numbers=("flops", "duration_ns")),
}
STEP_CASES = tuple(CASES)
CASES |= {
    "slow_link": Case(
        find=lambda columns: links.find(JOB, transfers_from(pa.table(columns)), GROUPS, []),
        columns=slow_group,
        sizes=(0.0, 0.1, 0.4, 1.0, 9.0),
        subject="dp:3",
        rename=renamed_group,
        renamed="dp:103",
    ),
}


# -- analyzers of machines ---------------------------------------------------------------------------------


def samples(table):
    times = table["ts"].cast(pa.int64()).to_pylist()
    return {name: np.array(table[name].to_pylist()) for name in table.column_names if name != "ts"} | {
        "ts": np.array(times, np.int64)
    }


def metrics(columns):
    ts = pa.array(columns["ts"], pa.timestamp("ns", "UTC"))
    return pa.table({**{n: pa.array(v.tolist()) for n, v in columns.items() if n != "ts"}, "ts": ts})


def erring_port(per_second):
    fleet_of_ports = ports.Fleet(seconds=60)
    fleet_of_ports.extra[3]["rdma_symbol_errors_total"] = per_second * np.arange(60)
    return samples(fleet_of_ports.table())


def failing_memory(per_second):
    rows = gpu_rows.rows("GPU-1", gpu_ecc_corrected_total=lambda i: 10.0 * per_second * i)
    return samples(gpu_rows.table(rows, gpu_rows.rows("GPU-2")))


def complaints(count):
    lines = [*lines_of_a_job(), *[(2, "n1", "error", f"cannot read shard {i}") for i in range(int(count))]]
    rank, node, severity, message = map(np.array, zip(*lines, strict=True))
    return {
        "rank": rank.astype(np.int64),
        "node": node,
        "severity": severity,
        "message": message,
        "ts": np.arange(len(lines)) * S,
    }


def kernel_faults(level):
    """A quiet line, and from level to level a worse Xid of one GPU."""
    codes = [None, 43, 48, 79][: int(level) + 1]
    lines = [
        "a quiet line",
        *(f"NVRM: Xid (PCI:0000:9b:00): {code}, pid=7, x" for code in codes[-1:] if code),
    ]
    return {"message": np.array(lines), "ts": np.arange(len(lines)) * S}


def read_kernel_lines(columns):
    rows = zip(columns["message"].tolist(), columns["ts"].tolist(), strict=True)
    return hardware.read([KernelLine(message=m, ts_ns=ts, wall=True) for m, ts in rows], node="n1")


def renamed_values(name, **names):
    return lambda columns: {
        **columns,
        name: np.array([names.get(v.replace("-", "_"), v) for v in columns[name].tolist()]),
    }


CASES |= {
    "network": Case(
        find=lambda columns: ports.find(metrics(columns), now_ns=ports.T0, job="j"),
        columns=erring_port,
        sizes=(0.0, 0.1, 5.0, 500.0, 50_000.0),
        subject="n1/mlx5_1/1",
        rename=renamed_values("node", n1="other"),
        renamed="other/mlx5_1/1",
        numbers=("value",),
    ),
    "gpu_health": Case(
        find=lambda columns: gpu_health.find(metrics(columns), now_ns=0),
        columns=failing_memory,
        sizes=(0.0, 10.0, 1e4, 1e5, 1e6),
        subject="n1/GPU-1",
        rename=renamed_values("device", GPU_1="GPU-9"),
        renamed="n1/GPU-9",
        numbers=("value",),
    ),
    "logs": Case(
        find=lambda columns: logs.find(metrics(columns), now_ns=0),
        columns=complaints,
        sizes=(0, 1, 5, 50),
        subject="2",
        rename=lambda columns: {**columns, "rank": RANKS[columns["rank"]]},
        renamed=str(RANKS[2]),
        doubled_is_same=False,  # a line that is printed twice counts twice
    ),
    "kernel_log": Case(
        find=read_kernel_lines,
        columns=kernel_faults,
        sizes=(0, 1, 2, 3),
        subject="n1/PCI:0000:9b:00",
        rename=lambda columns: {
            **columns,
            "message": np.array([m.replace("9b:00", "3f:00") for m in columns["message"].tolist()]),
        },
        renamed="n1/PCI:0000:3f:00",
        doubled_is_same=False,
    ),
}
every_case = pytest.mark.parametrize("name", CASES)


# -- laws --------------------------------------------------------------------------------------------------


def subjects(verdicts):
    return {finding.subject for finding in findings(verdicts)}


def taken(columns: Mapping[str, np.ndarray], rows) -> Columns:
    return {name: values[rows] for name, values in columns.items()}


def count(columns):
    return len(next(iter(columns.values())))


@every_case
def test_without_a_fault_nothing_is_found(name):
    verdicts = CASES[name].find(CASES[name].columns(0))
    assert verdicts
    assert all(isinstance(verdict, Healthy) for verdict in verdicts)


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.1])
def test_clean_runs_of_any_noise_give_no_finding(noise):
    for seed in range(20):
        for clean in (
            timings(fleet(steps=200, noise=noise, seed=seed)),
            timings(fleet(steps=120, noise=noise, seed=100 + seed)),
        ):
            for name in STEP_CASES:
                assert not findings(CASES[name].find_in(clean)), name


@every_case
def test_a_planted_fault_is_named_and_nothing_else(name):
    assert subjects(CASES[name].find(CASES[name].planted)) == {CASES[name].subject}


@every_case
def test_renaming_renames_the_answer(name):
    case = CASES[name]
    assert subjects(case.find(case.rename(case.planted))) == {case.renamed}


@given(renamed=st.permutations(range(8)))
@settings(max_examples=15)
def test_however_ranks_are_renamed_the_straggler_is_renamed(renamed):
    columns = slow_rank(0.3, steps=40)
    columns["rank"] = np.asarray(renamed)[columns["rank"]]
    assert subjects(straggler.find(timings(columns))) == {str(renamed[2])}


@every_case
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=3)
def test_the_order_of_rows_changes_nothing(name, seed):
    case = CASES[name]
    order = np.random.default_rng(seed).permutation(count(case.planted))
    assert case.find(taken(case.planted, order)) == case.find(case.planted)


@every_case
def test_a_worse_fault_is_never_milder(name):
    case = CASES[name]
    weights = [
        max((SEVERITIES[finding.severity] for finding in findings(case.find(case.columns(size)))), default=0)
        for size in case.sizes
    ]
    assert weights == sorted(weights)
    assert weights[0] == 0 < weights[-1]


@pytest.mark.parametrize(
    "name",
    [
        "straggler",
        "stage_imbalance",
        "sequence_imbalance",
        "data_stall",
        "gc_pause",
        "slow_link",
        "network",
        "gpu_health",
        "logs",
    ],
)
def test_confidence_in_a_worse_fault_is_never_less(name):
    case = CASES[name]
    weights = []
    for size in case.sizes:
        found = findings(case.find(case.columns(size)))
        weights.append(max(((SEVERITIES[f.severity], f.confidence) for f in found), default=(0, 0)))
    assert weights == sorted(weights)


def degenerate(case):
    """The planted data with too little of it, with holes, and twice."""
    columns = case.planted
    rows = count(columns)
    rng = np.random.default_rng(0)
    keeps = [np.zeros(rows, bool), np.arange(rows) < 1, np.arange(rows) < rows // 20, rng.random(rows) < 0.4]
    keeps += [columns[key] == columns[key][0] for key in ("rank", "step", "node", "device") if key in columns]
    keeps += [columns[key] != columns[key][-1] for key in ("rank", "step", "node") if key in columns]
    yield from (taken(columns, keep) for keep in keeps)
    for number in case.numbers:
        holes = np.where(rng.random(rows) < 0.3, np.nan, columns[number])
        yield {**columns, number: holes}
        yield {**columns, number: np.full(rows, np.nan)}
        yield {**columns, number: np.zeros(rows)}


@every_case
def test_degenerate_data_gets_a_verdict(name):
    for columns in degenerate(CASES[name]):
        verdicts = CASES[name].find(columns)
        assert verdicts
        assert all(isinstance(verdict, Finding | Healthy | Inconclusive) for verdict in verdicts)


@every_case
def test_no_data_is_inconclusive(name):
    case = CASES[name]
    (verdict,) = case.find(taken(case.planted, np.zeros(count(case.planted), bool)))
    assert isinstance(verdict, Inconclusive)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.doubled_is_same])
def test_rows_that_come_twice_change_nothing(name):
    case = CASES[name]
    twice = {key: np.concatenate([values, values]) for key, values in case.planted.items()}
    assert case.find(twice) == case.find(case.planted)


@pytest.mark.parametrize(
    "module",
    [straggler, fail_slow, imbalance, stalls, mfu, links, network, gpu_health, logs, hardware],
    ids=lambda module: module.__name__.rpartition(".")[2],
)
def test_every_analyzer_has_an_example_that_is_true(module):
    assert doctest.testmod(module).failed == 0
    public = [name for name in ("find", "stages", "sequences", "read") if hasattr(module, name)]
    assert all(">>>" in inspect.getdoc(getattr(module, name)) for name in public)
