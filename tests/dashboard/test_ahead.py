"""What is asked before a page is drawn is what the page asks: else it is asked in vain."""

import pytest

from pulsetrain.core.errors import Unavailable
from pulsetrain.dashboard import ahead, heatmap, metrics, node, nodes, overview, page, rank, topology
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
    for question in PAGES[name].ahead(before, "gpt", {}):
        question()
    source.stored |= STORED
    draw(name)
    assert before.asked or name == "nodes"
    assert set(before.asked) <= set(source.asked)


@pytest.mark.parametrize(("name", "chosen"), [("rank", "5"), ("node", "node-2")])
def test_a_page_about_one_asks_ahead_for_that_one(draw, source, name, chosen):
    known = [{"node": "node-2", "job": "gpt", "state": "active", "ranks": [4, 5]}]
    before = FakeSource(stored=STORED, answers={"nodes": known})
    shown = {"rank": rank, "node": node}[name]
    for question in shown.ahead(before, "gpt", {name: chosen}):
        question()
    source.stored |= STORED
    source.answers["nodes"] = known
    source.stored["work_beside_cohort"] = []
    draw(name, **{name: chosen})
    assert "work_beside_cohort" in {view for view, _, _ in before.asked}
    assert set(before.asked) <= set(source.asked)


def test_metrics_asks_ahead_for_the_counter_that_it_is_going_to_show(draw, source, monkeypatch):
    monkeypatch.setattr(metrics.page, "now_ns", lambda: 10**18)
    counter = {"name": "cpu_ratio", "nodes": 2, "devices": 2, "samples": 9, "counted_ns": 0}
    sample = {"node": "a", "device": "", "ts_ns": 10**18, "value": 2.0, "series_in_all": 1}
    source.stored |= {**STORED, "metric_names": [counter], "metric_series": [sample]}
    before = FakeSource(stored=source.stored, answers=source.answers)
    for question in metrics.ahead(before, "gpt", {}):
        question()
    draw("metrics")
    assert {"metric_names", "metric_series", "step_starts", "jobs"} <= {view for view, _, _ in before.asked}
    assert {asked for asked in before.asked if asked[0] != "events"} <= set(source.asked)


def test_no_node_asks_nothing_ahead(source):
    assert node.ahead(FakeSource(stored=STORED), "gpt", {}) == ()


@pytest.mark.parametrize("address", [{"find": "Rank 5"}, {"block": "3/40-47"}])
def test_topology_asks_ahead_for_the_part_that_its_address_names(draw, source, address):
    before = FakeSource(stored=STORED)
    for question in topology.ahead(before, "gpt", address):
        question()
    draw("topology", **address)
    assert "mesh_ranks" in {view for view, _, _ in before.asked}
    assert set(before.asked) <= set(source.asked)


def test_a_document_has_its_page_asked_ahead(source, monkeypatch):
    monkeypatch.setattr(ahead, "begin", lambda questions: [question() for question in questions])
    ahead.begin_document("/topology", "job=gpt&find=5&find=7")
    assert ("jobs", (), ()) in source.asked
    (ranks,) = [options for view, _, options in source.asked if view == "mesh_ranks"]
    assert dict(ranks)["find"] == "7"


@pytest.mark.parametrize(("path", "query"), [("/topology", ""), ("/", "job="), ("/heatmap", "job=gpt")])
def test_a_document_without_a_job_or_of_the_newest_steps_asks_nothing_ahead(source, path, query):
    ahead.begin_document(path, query)
    assert source.asked == []


def test_a_document_comes_also_where_nobody_knows_the_hub(monkeypatch):
    def none():
        raise Unavailable("no hub is known")

    monkeypatch.setattr(page, "_connect", none)
    ahead.begin_document("/topology", "job=gpt")


def test_the_time_is_no_part_of_a_question_on_the_last_heartbeats(monkeypatch):
    times, heard = iter([10**18, 10**18 + 10**9]), []
    monkeypatch.setattr(topology.page, "now_ns", lambda: next(times))

    def view(store, job, *, since_ns, fresh_ns):
        heard.append((store, job, fresh_ns - since_ns, fresh_ns))

    asked = topology._lately(view)
    asked("store", "j", silent_ns=5)
    asked("store", "j", silent_ns=5)
    assert asked.__name__ == "view"
    assert [each[:2] for each in heard] == [("store", "j")] * 2
    assert heard[1][3] - heard[0][3] == 10**9
    assert heard[0][2] > 0


@pytest.mark.parametrize("named", ["²", "abc", "-1", "99999999999"])
def test_a_rank_that_cannot_be_one_is_said_and_asks_nothing(draw, named):
    assert rank.ahead(FakeSource(stored=STORED), "gpt", {"rank": named}) == ()
    shown = draw("rank", rank=named)
    assert shown.app.warning[0].value == f"rank = {named!r}: allowed: the number of a rank, as in 371"
