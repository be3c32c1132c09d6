"""Loops in Prometheus' format."""

from prometheus_client import CollectorRegistry, generate_latest

from pulsetrain.hub.loop_metrics import LoopCollector
from tests.hub.test_loop_health import row


def test_every_loop_has_its_age_and_its_failures_by_process_node_and_loop():
    rows = [row(failures=2, age_s=0.5), row(process="agent", node="n7", loop="drain", age_s=3.0)]
    registry = CollectorRegistry()
    registry.register(LoopCollector(lambda: rows))
    lines = set(generate_latest(registry).decode().splitlines())
    assert lines >= {
        'pulsetrain_loop_age_seconds{loop="controller",node="",process="hub"} 0.5',
        'pulsetrain_loop_age_seconds{loop="drain",node="n7",process="agent"} 3.0',
        'pulsetrain_loop_failures_total{loop="controller",node="",process="hub"} 2.0',
    }


def test_registering_does_not_ask_for_the_loops():
    def rows():
        raise AssertionError("asked too early")

    CollectorRegistry().register(LoopCollector(rows))
