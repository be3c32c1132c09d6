"""`pulsetrain token`."""

from __future__ import annotations

import json

import click
import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.hub.token_file import KnownTokens, Role, TokenFile


@pytest.fixture
def tmp_path(tmp_path):
    """The folder of a hub that has run."""
    (tmp_path / "token").write_text("t")
    return tmp_path


def test_a_folder_that_no_hub_uses_is_noted(cli, tmp_path):
    done = cli("token", "create", "g", "--role", "viewer", "--data", tmp_path / "other")
    assert f"note: no hub has run with the folder {tmp_path / 'other'} yet" in done.output + done.stderr
    assert "note" not in cli("token", "create", "g", "--role", "viewer", "--data", tmp_path).output


def test_a_token_is_printed_once_listed_and_revoked(cli, tmp_path):
    at = ("--data", tmp_path)
    token = cli("token", "create", "grafana", "--role", "viewer", *at).output.strip()
    assert KnownTokens(TokenFile(tmp_path)).grant(token).role is Role.VIEWER
    cli("token", "create", "nodes", "--role", "agent", "--job", "gpt", *at)
    listed = cli("token", "list", *at).output
    assert token not in listed
    assert "grafana                  viewer, expires 20" in listed
    assert "nodes                    agent of job gpt, never expires" in listed
    assert cli("token", "revoke", "grafana", *at).output == "revoked grafana\n"
    assert "grafana" not in cli("token", "list", *at).output
    assert json.loads(cli("token", "revoke", "nodes", *at, "--json").output) == {"revoked": "nodes"}


def test_json_has_the_token_and_when_it_ends(cli, tmp_path):
    made = json.loads(
        cli("token", "create", "o", "--role", "operator", "--days", "1", "--data", tmp_path, "--json").output
    )
    assert set(made) == {"name", "role", "job", "node", "expires_ns", "token"}
    (listed,) = json.loads(cli("token", "list", "--data", tmp_path, "--json").output)["tokens"]
    assert listed["expires_ns"] - listed["created_ns"] == 86_400 * 10**9
    assert listed["expired"] is False


@pytest.mark.parametrize(
    "words", [("create", "a", "--role", "king"), ("create", "a", "--role", "viewer", "--days", "-1")]
)
def test_wrong_input_names_what_is_allowed(cli, tmp_path, words):
    done = cli("token", *words, "--data", tmp_path)
    assert isinstance(done.exception, click.UsageError)
    assert "'viewer', 'agent', 'operator'" in str(done.exception) or "0<=x<=36500" in str(done.exception)


@pytest.mark.parametrize("days", ["nan", "inf", "3000000"])
def test_an_end_that_no_calendar_has_is_refused(cli, tmp_path, days):
    done = cli("token", "create", "a", "--role", "viewer", "--days", days, "--data", tmp_path)
    assert isinstance(done.exception, click.UsageError | UsageError)
    assert TokenFile(tmp_path).grants() == ()


def test_a_token_of_nodes_does_not_end_by_itself_and_others_do(cli, tmp_path):
    for role in Role:
        cli("token", "create", role, "--role", role, "--data", tmp_path)
    assert {g.name for g in TokenFile(tmp_path).grants() if not g.expires_ns} == {"agent"}


def test_an_unknown_name_is_one_line(cli, tmp_path):
    done = cli("token", "revoke", "x", "--data", tmp_path)
    assert isinstance(done.exception, UsageError)
    assert "no token 'x'" in str(done.exception)


def test_a_token_of_an_agent_can_be_for_one_node(cli, tmp_path):
    token = cli("token", "create", "n7", "--role", "agent", "--node", "n7", "--data", tmp_path).output.strip()
    assert KnownTokens(TokenFile(tmp_path)).grant(token).node == "n7"
    assert "agent for node n7, never expires" in cli("token", "list", "--data", tmp_path).output
    done = cli("token", "create", "v", "--role", "viewer", "--node", "n7", "--data", tmp_path)
    assert "--node n7: only an agent's token can be for one node, not a viewer's" in str(done.exception)
