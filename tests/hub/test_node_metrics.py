"""Which nodes belong to jobs that go on, in Prometheus' format."""

from prometheus_client import CollectorRegistry, generate_latest

from pulsetrain.hub.node_metrics import NodeCollector
from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.transitions import Phase
from tests.hub.fakes import FakeJob
from tests.recovery.builders import node_snapshot


def test_nodes_of_jobs_that_go_on_are_named_and_no_others():
    nodes = tuple(node_snapshot(state.value, state=state) for state in NodeState)
    registry = CollectorRegistry()
    over = {name: FakeJob(job=name, nodes=nodes, phase=Phase(name)) for name in ("finished", "failed")}
    registry.register(NodeCollector({"gpt": FakeJob(job="gpt", nodes=nodes), **over}))
    lines = [line for line in generate_latest(registry).decode().splitlines() if line[0] != "#"]
    assert lines == [
        f'pulsetrain_job_node{{job="gpt",node="{name}"}} 1.0' for name in ("standby", "active", "lost")
    ]
