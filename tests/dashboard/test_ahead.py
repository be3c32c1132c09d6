"""What is asked before a page is drawn is what the page asks: else it is asked in vain."""

import pytest

from pulsetrain.dashboard import heatmap, metrics, node, nodes, overview, rank, topology
from tests.dashboard.conftest import FakeSource

STORED = {
    "jobs": [{"job": "gpt", "ranks": 16, "first_step": 0, "last_step": 99, "last_ns": 10**18}],
    "curve": [
        {
            "attempt": 0, "step": 99, "start_ns": 10**18, "step_ns": 10**9, "worst_ns": 10**9,
            "tokens_per_s": 5.0, "loss": 2.0,
        }
    ],
}  # fmt: skip
PAGES = {"overview": overview, "heatmap": heatmap, "topology": topology, "nodes": nodes}


@pytest.mark.parametrize("name", PAGES)
def test_the_page_asks_what_was_asked_ahead(draw, source, name):
    before = FakeSource(stored=STORED)
    for question in PAGES[name].ahead(before, "gpt"):
        question()
    source.stored |= STORED
    draw(name)
    assert before.asked or name == "nodes"
    assert set(before.asked) <= set(source.asked)


@pytest.mark.parametrize(("name", "chosen"), [("rank", "5"), ("node", "node-2")])
def test_a_page_about_one_asks_ahead_for_that_one(draw, source, monkeypatch, name, chosen):
    known = [{"node": "node-2", "job": "gpt", "state": "active", "ranks": [4, 5]}]
    before = FakeSource(stored=STORED, answers={"nodes": known})
    page = {"rank": rank, "node": node}[name]
    with monkeypatch.context() as address:
        address.setattr("streamlit.query_params", {name: chosen})
        for question in page.ahead(before, "gpt"):
            question()
    source.stored |= STORED
    source.answers["nodes"] = known
    source.stored["work_beside_cohort"] = []
    draw(name, **{name: chosen})
    assert "work_beside_cohort" in {view for view, _, _ in before.asked}
    assert set(before.asked) <= set(source.asked)


def test_metrics_asks_ahead_for_the_counter_that_it_is_going_to_show(draw, source, monkeypatch):
    monkeypatch.setattr(metrics.page, "now_ns", lambda: 10**18)
    counter = {"name": "cpu_ratio", "nodes": 2, "devices": 2, "samples": 9, "last_ns": 10**18}
    source.stored |= {**STORED, "metric_names": [counter]}
    before = FakeSource(stored=source.stored, answers=source.answers)
    for question in metrics.ahead(before, "gpt"):
        question()
    draw("metrics")
    assert {"metric_names", "metric_series", "jobs"} <= {view for view, _, _ in before.asked}
    assert {asked for asked in before.asked if asked[0] != "events"} <= set(source.asked)


def test_no_node_asks_nothing_ahead(source):
    assert node.ahead(FakeSource(stored=STORED), "gpt") == ()


def test_the_time_is_no_part_of_a_question_on_the_last_heartbeats(monkeypatch):
    times, heard = iter([10**18, 10**18 + 10**9]), []
    monkeypatch.setattr(topology.page, "now_ns", lambda: next(times))

    def view(store, job, *, since_ns, fresh_ns):
        heard.append((store, job, fresh_ns - since_ns, fresh_ns))

    asked = topology._lately(view)
    asked("store", "j")
    asked("store", "j")
    assert asked.__name__ == "view"
    assert [each[:2] for each in heard] == [("store", "j")] * 2
    assert heard[1][3] - heard[0][3] == 10**9
    assert heard[0][2] > 0
