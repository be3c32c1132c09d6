"""`pulsetrain ca`."""

from __future__ import annotations

import json

import click
import pytest

from pulsetrain.core.errors import UsageError


def test_three_commands_make_and_show_certificates(cli, tmp_path):
    ca = tmp_path / "ca"
    assert "expires in 3650 days" in cli("ca", "create", ca).output
    made = cli("ca", "issue", "head", "--host", "head.cluster", "--host", "10.0.0.5", "--ca", ca).output
    assert "head.pem  expires in 365 days" in made
    assert "for head.cluster, 10.0.0.5, localhost" in made
    listed = cli("ca", "list", "--ca", ca).output.splitlines()
    assert [line.split()[0] for line in listed] == ["ca", "head"]
    assert "expires in 365 days" in listed[1]


def test_by_default_the_ca_is_in_the_data_folder(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("PULSETRAIN_DATA", str(tmp_path))
    made = json.loads(cli("ca", "create", "--json").output)
    assert made["certificate"] == str(tmp_path / "ca" / "ca.pem")
    issued = json.loads(cli("ca", "issue", "head", "--host", "a", "--days", "30", "--json").output)
    assert set(issued) == {"name", "certificate", "key", "hosts", "expires", "expires_days"}
    assert issued["expires_days"] == pytest.approx(30, abs=0.1)
    assert json.loads(cli("ca", "list", "--json").output)["certificates"][1]["name"] == "head"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("issue", "head", "--host", "a b"), "--host 'a b'"),
        (("issue", "head"), "Missing parameter: hosts"),
        (("issue", "head", "--host", "a", "--days", "0"), "--days 0: allowed: above 0 to 36500"),
        (("issue", "head", "--host", "a", "--days", "nan"), "'nan': allowed are numbers"),
        (("create",), "holds a CA already"),
    ],
)
def test_wrong_input_is_one_line(cli, tmp_path, monkeypatch, words, said):
    monkeypatch.setenv("PULSETRAIN_DATA", str(tmp_path))
    cli("ca", "create")
    error = cli("ca", *words).exception
    assert isinstance(error, click.UsageError | UsageError)
    assert said in str(error)
