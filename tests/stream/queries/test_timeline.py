"""What a timeline needs beside spans, over a real store through the hub's query route."""

from __future__ import annotations

import pytest

from pulsetrain.stream.queries import timeline, views
from pulsetrain.stream.store.clickhouse import open_store
from tests.dashboard.hub_process import fake_hub

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with fake_hub(tmp_path_factory.mktemp("hub") / "store") as hub:
        opened = open_store(hub.url, token=hub.token)
        yield opened
        opened.close()


def ends(store, ranks, first=100, last=102):
    return timeline.collective_ends(store, "gpt", ranks=ranks, first=first, last=last).to_pylist()


def test_each_node_has_the_first_end_that_its_ranks_saw(store):
    rows = ends(store, (0, 1, 2, 3))
    assert [(r["step"], r["node"]) for r in rows] == [
        (step, node) for step in (102, 101, 100) for node in ("node-0", "node-4")
    ]
    spans = views.spans(store, "gpt", ranks=(0, 1), first=101, last=101).to_pylist()
    reduced = [s["start_ns"] + s["duration_ns"] for s in spans if s["phase"] == "all_reduce"]
    assert rows[2]["end_ns"] == min(reduced) < max(reduced)


def test_collectives_that_one_node_shares_with_nobody_tell_nothing(store):
    assert ends(store, (0, 1)) == []
    assert ends(store, ()) == []


def test_spans_have_what_the_record_says_of_blocking_and_peers(store):
    (first, *_) = views.spans(store, "gpt", ranks=(0,), first=100, last=100).to_pylist()
    assert (first["blocked_ns"], first["peer"]) == (-1, -1)
