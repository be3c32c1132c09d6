"""Options that several commands share."""

import json
from dataclasses import dataclass

import click
import pytest
from click.testing import CliRunner

from pulsetrain.cli import pulsetrain
from pulsetrain.cli.options import HubOptions, StoreOptions, grouped
from pulsetrain.core.errors import PulsetrainError, UsageError
from pulsetrain.records.batch import Batch
from tests.protocol.tls_server import issued, tls_server
from tests.stream.rows import table


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    monkeypatch.setenv("PULSETRAIN_DATA", str(tmp_path / "default"))
    for name in ("PULSETRAIN_HUB", "PULSETRAIN_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def running_hub(folder, url="http://127.0.0.1:1", token="kept"):
    """A data folder as a running hub leaves it."""
    folder.mkdir()
    (folder / "hub.json").write_text(json.dumps({"url": url, "token": token, "pid": 1}))
    return folder


def test_the_hub_of_the_default_folder_is_found(tmp_path):
    running_hub(tmp_path / "default")
    address = HubOptions().address()
    assert (address.url, address.token) == ("http://127.0.0.1:1", "kept")


def test_data_goes_before_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("PULSETRAIN_HUB", "http://other:1")
    monkeypatch.setenv("PULSETRAIN_TOKEN", "others")
    address = HubOptions(data=running_hub(tmp_path / "mine")).address()
    assert (address.url, address.token) == ("http://127.0.0.1:1", "kept")


def test_the_environment_goes_before_the_default_folder(tmp_path, monkeypatch):
    running_hub(tmp_path / "default")
    monkeypatch.setenv("PULSETRAIN_HUB", "http://other:1")
    monkeypatch.setenv("PULSETRAIN_TOKEN", "others")
    address = HubOptions().address()
    assert (address.url, address.token) == ("http://other:1", "others")


def test_an_address_that_is_given_goes_before_everything(tmp_path, monkeypatch):
    monkeypatch.setenv("PULSETRAIN_HUB", "http://other:1")
    monkeypatch.setenv("PULSETRAIN_TOKEN", "others")
    folder = running_hub(tmp_path / "mine")
    address = HubOptions(hub="http://given:1/", data=folder).address()
    assert (address.url, address.token) == ("http://given:1", "others")
    assert HubOptions(hub="http://given:1", token="t").address().token == "t"


def test_the_token_of_one_hub_is_not_sent_to_another(tmp_path):
    running_hub(tmp_path / "default")
    assert HubOptions(hub="http://other:1").address().token == ""


@pytest.mark.parametrize("text", [None, "[]", "oops", '{"url": 3}'])
def test_a_folder_without_a_hub_is_named(tmp_path, monkeypatch, text):
    monkeypatch.setenv("PULSETRAIN_HUB", "http://other:1")
    if text is not None:
        (tmp_path / "hub.json").write_text(text)
    with pytest.raises(UsageError, match=str(tmp_path / "hub.json")):
        HubOptions(data=tmp_path).address()


def test_records_go_to_the_hub_of_a_folder_by_its_own_ca(tmp_path, monkeypatch):
    monkeypatch.delenv("PULSETRAIN_CA", raising=False)
    with tls_server(issued(tmp_path / "ca", "127.0.0.1")) as url:
        known = {"url": url, "token": "kept", "pid": 1}
        for ca, why in ((tmp_path / "ca" / "ca.pem", "501"), ("", "is by a CA that is not known here")):
            (tmp_path / "hub.json").write_text(json.dumps({**known, "ca": str(ca)}))
            with StoreOptions(data=tmp_path).sink() as sink, pytest.raises(PulsetrainError, match=why):
                sink.put(Batch(record="steps", source="n/1", first_row=0, version=1, table=table("steps", 1)))


@pytest.mark.parametrize("url", ["nonsense", "http://clickhouse:nonsense/db", "http://[nonsense/db"])
def test_a_store_that_cannot_be_is_named(url):
    with pytest.raises(UsageError, match="nonsense"), StoreOptions(store=url).open():
        pass


@dataclass(frozen=True, kw_only=True)
class Pair:
    left: int
    right: str | None


def test_grouped_options_arrive_as_one_value_in_their_order():
    seen = []

    @click.command()
    @grouped("pair", Pair, click.option("--left", type=int, required=True), click.option("--right"))
    @click.option("--last", is_flag=True)
    def command(pair, last):
        seen.append((pair, last))

    CliRunner().invoke(command, ["--left", "3", "--last"], standalone_mode=False)
    assert seen == [(Pair(left=3, right=None), True)]
    assert [p.name for p in command.params] == ["left", "right", "last"]


def hub_commands():
    def walk(group, path):
        for name, command in group.commands.items():
            if isinstance(command, click.Group):
                yield from walk(command, f"{path} {name}")
            elif any("--hub" in p.opts for p in command.params):
                yield pytest.param(command, id=f"{path} {name}")

    return list(walk(pulsetrain, "pulsetrain"))


@pytest.mark.parametrize("command", hub_commands())
def test_every_command_that_talks_to_a_hub_takes_its_address_token_and_folder(command):
    assert {"--hub", "--token", "--data"} <= {name for p in command.params for name in p.opts}


@pytest.mark.parametrize("command", hub_commands())
def test_the_options_of_the_hub_have_the_same_help_everywhere(command):
    helps = {p.name: p.help for p in command.params if p.name in ("hub", "token", "data")}
    expected = {p.name: p.help for p in pulsetrain.commands["status"].params}
    assert helps == {name: expected[name] for name in helps}


def test_a_store_that_is_not_there_is_named_and_not_made(tmp_path):
    with (
        pytest.raises(UsageError, match="there is no such folder"),
        StoreOptions(store=f"chdb://{tmp_path}/typo").open(),
    ):
        pass
    assert not (tmp_path / "typo").exists()


@pytest.mark.integration
def test_a_store_without_records_says_so(tmp_path):
    (tmp_path / "empty").mkdir()
    with (
        pytest.raises(UsageError, match="it has no records"),
        StoreOptions(store=f"chdb://{tmp_path}/empty").open(),
    ):
        pass
