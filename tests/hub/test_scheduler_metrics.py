"""Requests to the scheduler in Prometheus' format."""

from prometheus_client import CollectorRegistry, generate_latest

from pulsetrain.hub.scheduler_metrics import SchedulerCollector
from pulsetrain.recovery.scheduler import SchedulerRequests, What


def test_requests_are_shown_by_kind_and_result():
    requests, registry = SchedulerRequests(), CollectorRegistry()
    registry.register(SchedulerCollector(requests))
    assert b'what="' not in generate_latest(registry)
    requests.counts[What.DRAIN, False] += 2
    requests.counts[What.REPLACE, True] += 1
    text = generate_latest(registry).decode()
    assert 'pulsetrain_scheduler_requests_total{result="failed",what="drain"} 2.0' in text
    assert 'pulsetrain_scheduler_requests_total{result="done",what="replace"} 1.0' in text
