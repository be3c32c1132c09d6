"""The page Stacks."""

import json
import time

import pytest

from pulsetrain.core.errors import Unavailable
from pulsetrain.dashboard.source import Source
from pulsetrain.protocol.client import HubAddress
from tests.protocol.fake_hub import fake_hub

TREE = {
    "frame": "MainThread", "ranks": "0-7",
    "children": [
        {"frame": "all_reduce", "ranks": "0-4,6-7", "children": []},
        {"frame": "<forward>", "ranks": "5", "children": []},
    ],
}  # fmt: skip
READ = {
    "ts_ns": 10**18, "sentence": "Stacks differ: rank 5.", "attempt": 1, "outliers": "5",
    "blind": [{"ranks": "7", "reason": "gone"}], "clusters": [{"ranks": "0-4,6-7"}, {"ranks": "5"}],
    "tree": [TREE, {"frame": "loader", "ranks": "0", "children": []}],
}  # fmt: skip


def test_the_merged_stacks_of_the_main_thread_are_shown_and_who_differs_is_bold(draw, source):
    source.answers["stacks"] = READ
    shown = draw("stacks")
    assert "Stacks differ: rank 5." in shown.text
    assert "ranks 7: gone" in shown.text
    assert shown.rows() == [["0-7", "MainThread"], ["0-4,6-7", "all_reduce"], ["5", "<forward>"]]
    assert '<b class="culprit">&lt;forward&gt;</b>' in shown.html


def test_only_the_chosen_ranks_are_shown(draw, source):
    source.answers["stacks"] = READ
    assert draw("stacks", ranks="5").rows() == [["0-7", "MainThread"], ["5", "<forward>"]]
    assert "No stack of ranks 9 was read." in draw("stacks", ranks="9").text
    assert "seven" in draw("stacks", ranks="seven").app.warning[0].value


def test_a_click_reads_them(draw, source):
    shown = draw("stacks")
    assert "No stacks were read" in shown.text
    shown.click("read_stacks")
    assert source.client.done == [("stacks", "gpt")]


def test_a_hub_that_cannot_read_them_says_so(draw, source):
    source.client.refusal = Unavailable("no agent answers")
    assert "Not read: no agent answers" in draw("stacks").click("read_stacks").text


def test_a_reading_that_waits_for_a_silent_agent_is_waited_for(draw, source, monkeypatch):
    monkeypatch.setattr("pulsetrain.dashboard.source.PATIENCE_S", 0.1)
    with fake_hub() as hub:
        hub.next_answer = lambda: time.sleep(0.4) or (200, {})
        slow = Source(HubAddress(url=hub.url, token="t"))
        source.client, source.read_stacks = slow.client, slow.read_stacks
        shown = draw("stacks").click("read_stacks")
    assert [asked.path for asked in hub.asked] == ["/v1/jobs/gpt/stacks"]
    assert "Not read" not in shown.text


@pytest.mark.parametrize(
    ("detail", "words"), [(json.dumps(READ), "Stacks differ"), ("{", "No stacks were read")]
)
def test_stacks_of_a_job_that_is_over_come_from_the_store(draw, source, detail, words):
    source.answers["status"] = {"jobs": [], "hub": {}}
    source.stored["events"] = [{"attempt": 3, "detail": detail}]
    assert words in draw("stacks").text


RAS = {
    "ts_ns": 10**18, "sentence": "NCCL RAS: communicator <0x1>", "state": "lagging", "culprits": [5],
    "communicators": [
        {
            "communicator": "0x1/0xa", "size": 8, "behind": "5", "silent": "", "ahead": "0-4,6-7",
            "sentence": "s",
        }
    ],
}  # fmt: skip


def test_what_ras_said_is_above_the_stacks(draw, source):
    source.answers["stacks"] = READ
    source.stored["events"] = [{"attempt": 1, "detail": json.dumps(RAS)}]
    shown = draw("stacks")
    assert "NCCL RAS: communicator <0x1>" in shown.text
    assert "&lt;0x1&gt;" in shown.html
    assert shown.rows() == [["0x1/0xa", "8", "5", "", "0-4,6-7", "s"]]
    assert shown.rows(1)[0] == ["0-7", "MainThread"]
