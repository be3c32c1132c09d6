"""Machines' records and step times through a real store: what analyze says of them."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv

from pulsetrain.analytics.analyze import analyze
from pulsetrain.analytics.machines.analyzers import MachineSource, kernel
from pulsetrain.analytics.machines.rule_matches import first_errors
from pulsetrain.analytics.verdict import Failed, Healthy, Inconclusive, findings
from pulsetrain.collectors.machine.rdma import RdmaSampler
from pulsetrain.hub.stored_records import StoreRecords
from pulsetrain.records.arrow import arrow_schema, to_table
from pulsetrain.records.kernel_log import READABLE, parse_all
from pulsetrain.records.schema import RECORDS
from pulsetrain.stream.queries import machines
from pulsetrain.stream.queries.queryable import AttemptSteps
from pulsetrain.stream.store.clickhouse import open_store
from tests.repository import DATA

pytestmark = pytest.mark.integration
recorded = pytest.mark.skipif(not DATA.is_dir(), reason=f"no recordings in {DATA}")
S = 1_000_000_000
T0 = 1_740_327_000 * S  # before the recorded kernel log


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    opened = open_store(f"chdb://{tmp_path_factory.mktemp('machines')}/store")
    opened.migrate()
    yield opened
    opened.close()


def insert(store, record, rows):
    """Rows as dicts; fields that are not given hold the default."""
    fields = RECORDS[record].fields
    columns = {f.name: [row.get(f.name, f.default) for row in rows] for f in fields}
    arrays = []
    for field in arrow_schema(record):
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        arrays.append(pa.array(columns[field.name], kind).cast(field.type))
    store.insert(record, pa.Table.from_arrays(arrays, schema=arrow_schema(record)))


def steps(job, durations, step_ns=5 * S, first_ns=T0):
    """Rows of `steps` from durations [rank, step] in any unit."""
    unit = S / float(np.median(durations))
    return [
        {
            "job": job,
            "attempt": 0,
            "node": f"n{rank // 2}",
            "rank": rank,
            "step": step,
            "start": first_ns + step * step_ns,
            "duration_ns": int(durations[rank, step] * unit),
        }
        for rank in range(durations.shape[0])
        for step in range(durations.shape[1])
    ]


def kinds(verdicts):
    return {(f.kind, f.subject_type, f.subject) for f in findings(verdicts)}


@recorded
def test_step_times_of_a_recorded_job_name_its_slow_worker(store):
    (path,) = (DATA / "fail-slow").glob("*.csv")
    table = csv.read_csv(path)
    workers = table["worker"].to_numpy()
    times = np.unique(table["time"].to_numpy(), return_inverse=True)[1]
    durations = np.zeros((workers.max() + 1, times.max() + 1))
    durations[workers, times] = table["batch_time_norm"].to_numpy()
    insert(store, "steps", steps("recorded", durations))
    verdicts = analyze(store, "recorded", now_ns=T0 + 10_000 * S, scan=True)
    assert not [v for v in verdicts if isinstance(v, Failed)]
    slow = {f.subject for f in findings(verdicts) if f.kind == "fail_slow"}
    assert slow == {"6"}
    blind = {v.analyzer for v in verdicts if isinstance(v, Inconclusive) and v.blind}
    assert {"network", "gpu_health", "kernel_log"} <= blind


def test_a_port_that_is_down_stays_down_when_the_steps_that_saw_it_up_are_no_longer_looked_at(store):
    count, step_ns = 400, 2 * S
    insert(store, "steps", steps("long", np.ones((2, count)), step_ns=step_ns, first_ns=T0))
    rows = [
        {
            "node": "n0",
            "device": device,
            "name": "nic_port_state",
            "ts": T0 + second * S,
            "value": float(device == "eth0" and second < 40),
        }
        for second in range(0, 800, 4)
        for device in ("eth0", "eth1")  # nothing was ever plugged into eth1
    ]
    insert(store, "metrics", rows)
    found = [f for f in findings(analyze(store, "long", now_ns=T0 + 800 * S)) if f.kind == "port_down"]
    assert [f.subject for f in found] == ["n0/eth0"]
    assert found[0].evidence["down_s"] > 700


def port_states(job, up_at):
    """An interface of `job`'s node n-JOB for ten minutes, and whether it was up at each second."""
    return [
        {
            "node": f"n-{job}",
            "device": "eth0",
            "name": "nic_port_state",
            "ts": T0 + second * S,
            "value": float(up_at(second)),
        }
        for second in range(0, 600, 2)
    ]


def test_a_port_of_a_job_without_steps_is_looked_at(store):
    insert(store, "topology", [{"job": "untold", "attempt": 0, "node": "n-untold", "rank": 0, "ts": T0 + S}])
    insert(store, "metrics", port_states("untold", lambda second: second < 550 or second % 4))
    said = StoreRecords(store).look("untold", 0, T0 + 600 * S, ["machines"])["machines"]
    assert ("link_flap", "link", "n-untold/eth0") in kinds(said)
    assert {v.analyzer for v in said if isinstance(v, Inconclusive)}.isdisjoint({"analyze", "network"})


def test_a_port_of_a_job_without_steps_is_down_only_if_it_was_up_since_the_job_began(store):
    for job, until in (("unplugged", -100), ("cut", 40)):
        at = {"node": f"n-{job}", "rank": 0, "ts": T0 + S}
        insert(store, "topology", [{"job": job, "attempt": 0, **at}])
        insert(store, "metrics", port_states(job, lambda second, until=until: second < until))
        before = [{**row, "ts": row["ts"] - 600 * S} for row in port_states(job, lambda second: True)]
        insert(store, "metrics", before)
        said = StoreRecords(store).look(job, 0, T0 + 600 * S, ["machines"])["machines"]
        assert ("port_down" in {kind for kind, _, _ in kinds(said)}) == (job == "cut")


@pytest.mark.parametrize(("readable", "state"), [(1.0, Healthy), (0.0, Inconclusive)])
def test_a_quiet_kernel_log_is_healthy_where_an_agent_reads_it(store, readable, state):
    job = f"quiet{readable}"
    rows = [{**row, "node": job} for row in steps(job, np.ones((2, 20)))]
    insert(store, "steps", rows)
    insert(store, "metrics", [{"node": job, "name": READABLE, "ts": T0 + 5 * S, "value": readable}])
    step_range = AttemptSteps(job=job, attempt=0, first=0, last=19)
    (verdict,) = kernel(MachineSource(store=store, steps=step_range, now_ns=T0 + 100 * S))
    assert isinstance(verdict, state)


@pytest.mark.parametrize(("scan", "times"), [(True, (60, 38_900)), (False, (38_900,))])
def test_of_long_steps_only_what_was_lately_is_said_to_be_so_now(store, scan, times):
    job = f"long-steps-{scan}"
    insert(
        store, "steps", [{**r, "node": job} for r in steps(job, np.full((1, 40), 1000.0), step_ns=1000 * S)]
    )
    lines = [
        {"ts": T0 + second * S, "node": job, "source": "kmsg", "message": "x"} for second in (60, 38_900)
    ]
    insert(store, "logs", lines)
    of = AttemptSteps(job=job, attempt=0, first=0, last=39)
    source = MachineSource(store=store, steps=of, now_ns=T0 + 40_000 * S, scan=scan)
    said = machines.kernel_log(store, source.during)["ts_ns"].to_pylist()
    assert said == [T0 + second * S for second in times]


@recorded
def test_a_kernel_log_is_found_by_the_job_whose_node_it_is(store):
    insert(store, "steps", steps("faulty", 1 + 0.01 * np.random.default_rng(0).random((4, 300))))
    text = next((DATA / "kmsg").glob("dmesg*.log")).read_text()
    lines = [
        {"ts": line.ts_ns, "node": "n1", "source": "kmsg", "message": line.message}
        for line in parse_all(text.splitlines())
    ]
    insert(store, "logs", [*lines, {**lines[2], "node": "elsewhere"}])
    (fault,) = [
        f
        for f in findings(analyze(store, "faulty", now_ns=T0 + 2000 * S, scan=True))
        if f.kind == "gpu_fault"
    ]
    assert fault.subject == "n1/GPU-509665ad-b600-ac93-3616-d754b23d636d"
    assert (fault.job, fault.evidence["xid"], fault.evidence["count"]) == ("faulty", 119, 5)


@recorded
def test_ports_gpus_and_logs_of_the_nodes_are_judged(store, tmp_path):
    insert(store, "steps", steps("wired", 1 + 0.01 * np.random.default_rng(0).random((4, 60)), step_ns=2 * S))
    rows = []
    for second in range(120):
        for node in ("n0", "n1"):
            batch = RdmaSampler(DATA / "rdma-h100" / "class-infiniband").sample(T0 + second * S)
            for row in to_table(batch).select(["device", "name", "value"]).slice(0, 50).to_pylist():
                moving = row["name"] == "rdma_transmit_bytes"
                stopped = node == "n1" and second > 60
                grown = 1e9 * (60 if stopped else second) if moving else 0.0
                rows.append({**row, "node": node, "ts": T0 + second * S, "value": row["value"] + grown})
        rows += [
            {
                "node": "n0",
                "device": "GPU-7",
                "name": "gpu_remapped_rows_failed",
                "ts": T0 + second * S,
                "value": 1.0,
            }
        ]
    insert(store, "metrics", rows)
    printed = [
        {
            "ts": T0 + i * S,
            "job": "wired",
            "attempt": 0,
            "node": f"n{rank // 2}",
            "rank": rank,
            "source": "stderr",
            "severity": "info",
            "message": f"step {i} done",
        }
        for i in range(5)
        for rank in range(4)
    ]
    complaint = {
        **printed[2],
        "severity": "error",
        "message": "CUDA error: uncorrectable ECC error encountered",
    }
    insert(store, "logs", [*printed, complaint])
    kinds_found = kinds(analyze(store, "wired", now_ns=T0 + 130 * S, scan=True))
    assert ("traffic_stop", "link", "n1/mlx5_0/1") in kinds_found
    assert ("gpu_fault", "gpu", "n0/GPU-7") in kinds_found
    assert ("log_anomaly", "rank", "2") in kinds_found
    assert not any(kind == "link_errors" for kind, _, _ in kinds_found)
    live = kinds(analyze(store, "wired", now_ns=T0 + 130 * S))
    assert ("gpu_fault", "gpu", "n0/GPU-7") in live


def test_matches_of_log_rules_on_ranks_and_nodes_of_the_attempt_are_findings(store):
    insert(store, "steps", steps("ruled", 1 + 0.01 * np.random.default_rng(0).random((4, 60))))
    detail = json.dumps({"rule": "ib", "kind": "rdma_error", "severity": "warning", "line": "ibv_x failed"})
    event = {"ts": T0 + 50 * S, "kind": "log_rule", "detail": detail}
    insert(
        store,
        "events",
        [
            {**event, "job": "ruled", "attempt": 0, "node": "n0", "rank": 1},
            {**event, "job": "ruled", "attempt": 1, "node": "n0", "rank": 2},
            {**event, "node": "n1", "rank": -1},
            {**event, "node": "elsewhere", "rank": -1},
        ],
    )
    verdicts = kinds(analyze(store, "ruled", now_ns=T0 + 60 * S))
    assert {v for v in verdicts if v[0] == "rdma_error"} == {
        ("rdma_error", "rank", "1"),
        ("rdma_error", "node", "n1"),
    }
    insert(
        store,
        "events",
        [
            {
                **event,
                "kind": "first_error",
                "job": "ruled",
                "attempt": 0,
                "rank": 1,
                "detail": json.dumps({"local_rank": 1, "message": {"message": "ValueError: x"}}),
            }
        ],
    )
    assert first_errors(machines.first_errors(store, "ruled"))["culprit"] == 1
