"""`pulsetrain hang` asks NCCL RAS, here a fake one, or lets the hub ask."""

import json
import socket

import pytest

from pulsetrain.cli import hanging
from pulsetrain.core.errors import Unavailable, UsageError
from tests.collectors.machine.fake_ras import communicator, fake_ras, report

STUCK = report(communicator("0x1", [42, 42, 41, 42]))
LINE = "communicator 0x1 of 4 ranks: 2 began 41 collectives, 0-1,3 began 42"


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(hanging, "PAUSE_S", 0.0)
    for name in ("NCCL_RAS_ADDR", "NCCL_RAS_ENABLE"):
        monkeypatch.delenv(name, raising=False)


def test_ras_is_asked_twice_and_who_lags_is_named(cli):
    with fake_ras(STUCK) as ras:
        done = cli("hang", "--ras", f"127.0.0.1:{ras.port}")
    assert done.return_value == 1
    assert done.output.startswith("verdict: rank")
    assert "at fault: 2" in done.output
    assert f"  {LINE}\n" in done.output
    assert ras.commands.count("VERBOSE STATUS") == 2


def test_without_an_address_that_of_the_environment_is_asked(cli, monkeypatch):
    moved = report(communicator("0x1", [43, 43, 42, 43]))
    with fake_ras(STUCK, moved) as ras:
        monkeypatch.setenv("NCCL_RAS_ADDR", f"127.0.0.1:{ras.port}")
        done = cli("hang", "--ras", "--json")
    answer = json.loads(done.output)
    assert (answer["verdict"], answer["communicators"], done.return_value) == ("none", [], 0)


def test_where_nothing_listens_that_is_one_line(cli):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    failed = cli("hang", "--ras", f"127.0.0.1:{port}").exception
    assert isinstance(failed, Unavailable)
    assert "nothing listens" in str(failed)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "not none"),
        (("somewhere", "--ras"), "not DIR and --ras"),
        (("--ras", "h:x"), "allowed: HOST:PORT"),
    ],
)
def test_one_source_is_asked_and_an_address_that_is_none_is_named(cli, words, expected):
    failed = cli("hang", *words).exception
    assert isinstance(failed, UsageError)
    assert expected in str(failed)


TOLD = {
    "state": "lagging", "sentence": f"NCCL RAS: {LINE}", "verdict": "rank", "culprits": [2],
    "confidence": 0.9, "communicators": [{"sentence": LINE}],
}  # fmt: skip


def test_an_agent_of_a_job_is_asked_over_the_hub(ask, canned_hub):
    canned_hub.answers["POST /v1/jobs/gpt/ras"] = TOLD
    done = ask("hang", "--job", "gpt")
    assert done.return_value == 1
    assert done.output.splitlines() == [
        f"NCCL RAS: {LINE}", "verdict: rank (confidence 0.90); at fault: 2", f"  {LINE}",
    ]  # fmt: skip
    assert json.loads(ask("hang", "--job", "gpt", "--json").output)["culprits"] == [2]


def test_where_no_agent_could_ask_the_line_says_why(ask, canned_hub):
    unknown = {"sentence": "a: nothing listens", "verdict": "uncertain", "culprits": [], "communicators": []}
    canned_hub.answers["POST /v1/jobs/gpt/ras"] = unknown
    done = ask("hang", "--job", "gpt")
    assert (done.output, done.return_value) == ("a: nothing listens\n", 0)
