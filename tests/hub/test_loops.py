"""The table of loops: the hub's own, and what agents report of theirs."""

from pulsetrain.core.supervisor import LoopStatus
from pulsetrain.hub.loops import LISTED, LoopTable
from pulsetrain.recovery.nodes import NodeState
from tests.hub.fakes import FakeJob
from tests.recovery.builders import heartbeat, node_snapshot


def loop(name, **changes):
    fields = {
        "name": name, "turns": 3, "failures": 0, "failures_in_a_row": 0, "last_error": "", "age_s": 0.25,
        "stale": False,
    }  # fmt: skip
    return LoopStatus(**(fields | changes))


def test_a_loop_of_an_agent_is_as_old_as_its_report_and_its_age_together():
    node = node_snapshot("a", heartbeat=heartbeat("a", loops=(loop("drain"),)), heartbeat_age_s=2.0)
    table = LoopTable([lambda: [loop("controller", failures=2)]], {"j": FakeJob(nodes=(node,))})
    hub, agent = table.rows()
    assert (hub["process"], hub["node"], hub["loop"], hub["failures"]) == ("hub", "", "controller", 2)
    assert (agent["process"], agent["node"], agent["loop"], agent["age_s"]) == ("agent", "a", "drain", 2.25)


def test_loops_of_a_node_that_is_gone_are_not_shown():
    gone = node_snapshot("a", state=NodeState.LOST, heartbeat=heartbeat("a", loops=(loop("drain"),)))
    assert LoopTable([], {"j": FakeJob(nodes=(gone, node_snapshot("b", heartbeat=None)))}).rows() == []


def test_more_loops_of_the_hub_may_be_added_and_only_they_count_as_its_failures():
    node = node_snapshot("a", heartbeat=heartbeat("a", loops=(loop("drain", failures=9),)))
    table = LoopTable([lambda: [loop("controller", failures=2)]], {"j": FakeJob(nodes=(node,))})
    table.add(lambda: [loop("kafka ingest", failures=1)])
    assert table.hub_failures() == 3
    assert [row["loop"] for row in table.rows()] == ["controller", "kafka ingest", "drain"]


def test_of_thousands_of_nodes_the_loops_in_trouble_are_listed_and_few_others():
    def node(number):
        loops = (loop("drain", stale=number == 900), loop("ship", failures=int(number == 950)))
        return node_snapshot(f"n{number}", heartbeat=heartbeat(f"n{number}", loops=loops))

    rows = LoopTable([], {"j": FakeJob(nodes=tuple(node(number) for number in range(1000)))}).rows()
    assert {(row["node"], row["loop"]) for row in rows if row["stale"] or row["failures"]} == {
        ("n900", "drain"), ("n950", "ship"),
    }  # fmt: skip
    assert len(rows) == LISTED + 2
