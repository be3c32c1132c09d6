"""Why ranks compute every update themselves again, as events."""

import json
from types import SimpleNamespace

import pytest

from pulsetrain.agent.processes.devices import SharedDevices
from pulsetrain.agent.processes.rank import NodeIdentity
from pulsetrain.agent.squash_events import SquashEvents
from pulsetrain.collectors import squash_layout as layout
from pulsetrain.collectors.rank.squash.cell import Page
from pulsetrain.collectors.reading.squash_words import SquashMemory
from tests.agent.processes.test_devices import Rank

IDENTITY = NodeIdentity(job="gpt", node="n3", address="127.0.0.4", nproc_per_node=2)


@pytest.fixture
def devices():
    shared = SharedDevices(SquashMemory(every=9))
    yield shared
    shared.close()


def source(devices):
    ranks = tuple(SimpleNamespace(rank=6 + local, local_rank=local, attempt=5) for local in range(2))
    return SquashEvents(IDENTITY, lambda: SimpleNamespace(devices=devices, all=ranks))


def test_a_rank_that_differs_is_told_once_and_nobody_squashes_any_more(devices):
    ranks = [Rank(6), Rank(7)]
    devices.share(ranks, 1)
    page = Page(devices.squash.fd, 1)
    assert page.words[layout.W_MASK] == 0b11
    events = source(devices)
    assert list(events.take(1)) == []
    page.stop(json.dumps({"rank": 7, "step": 12}))
    (batch,) = events.take(2)
    (row,) = batch.to_rows()
    assert (row["kind"], row["job"], row["attempt"], row["rank"]) == ("squash_stopped", "gpt", 5, 7)
    assert json.loads(row["detail"])["step"] == 12
    assert list(events.take(3)) == []
    assert page.words[layout.W_MASK] == 0
    devices.begin(ranks, 1, world_size=len(ranks), program=0)
    assert page.words[layout.W_MASK] == 0, "nor in later attempts"


def test_an_optimizer_that_is_left_out_is_told_once_and_others_are_squashed_still(devices):
    devices.share([Rank(6), Rank(7)], 1)
    page = Page(devices.squash.fd, 0)
    events = source(devices)
    page.leave_out(json.dumps({"why": "AdamW: handing over takes 2.00 ms longer than 1 updates"}))
    (batch,) = events.take(1)
    (row,) = batch.to_rows()
    assert (row["kind"], row["attempt"], row["rank"]) == ("squash_left_out", 5, 6)
    assert "AdamW" in row["detail"]
    assert list(events.take(2)) == []
    assert page.words[layout.W_MASK] == 0b11


def test_a_node_that_does_not_squash_has_nothing_to_tell():
    shared = SharedDevices()
    assert list(source(shared).take(1)) == []
    shared.close()
