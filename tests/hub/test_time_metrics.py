"""Where the time of jobs goes, in Prometheus' format."""

from dataclasses import replace

from prometheus_client import CollectorRegistry, generate_latest

from pulsetrain.hub.time_metrics import TimeCollector
from pulsetrain.recovery.time_use import TimeUse, Use
from tests.hub.fakes import FakeJob

USED = TimeUse(
    began_ns=0,
    total_ns={Use.TRAIN: 90_000_000_000, Use.FAIL_OVER: 10_000_000_000},
    hour_ns={Use.TRAIN: 30_000_000_000, Use.FAIL_OVER: 10_000_000_000},
)


def test_each_job_has_its_ratio_for_all_time_and_for_an_hour_and_its_seconds_by_use():
    registry = CollectorRegistry()
    registry.register(TimeCollector({"gpt": FakeJob(job="gpt", time_use=USED), "new": FakeJob(job="new")}))
    lines = generate_latest(registry).decode().splitlines()
    assert {
        'pulsetrain_job_ettr_ratio{job="gpt",window="all"} 0.9',
        'pulsetrain_job_ettr_ratio{job="gpt",window="1h"} 0.75',
        'pulsetrain_job_time_seconds_total{job="gpt",use="fail_over"} 10.0',
        'pulsetrain_job_time_seconds_total{job="gpt",use="detect"} 0.0',
    } <= set(lines)
    assert not [line for line in lines if 'job="new"' in line]


def test_seconds_never_fall_while_a_job_runs_and_begin_anew_with_another_run():
    job = FakeJob(job="gpt", time_use=USED)
    registry = CollectorRegistry()
    registry.register(TimeCollector({"gpt": job}))

    def told(began_ns, train_s):
        job.changes["time_use"] = replace(USED, began_ns=began_ns, total_ns={Use.TRAIN: train_s * 10**9})
        return registry.get_sample_value("pulsetrain_job_time_seconds_total", {"job": "gpt", "use": "train"})

    assert [told(0, s) for s in (90, 60, 80, 95)] == [90, 90, 90, 95]
    assert told(1, 5) == 5
