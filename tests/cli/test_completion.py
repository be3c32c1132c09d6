"""Completion of words on the command line, by a real bash and by its parts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import click
import pytest

from pulsetrain.cli import pulsetrain
from pulsetrain.cli.completion import SHELLS, VARIABLE, LineComplete, script_for
from tests.repository import ROOT
from tests.terminal.answers import alert, job, status

NODES = [
    {"node": "node-a", "state": "active"},
    {"node": "node-b", "state": "lost"},
    {"node": "x", "state": "left"},
]


@pytest.fixture
def complete(monkeypatch):
    """What a line that ends where the cursor is may go on with, as bash is told."""

    def ask(line):
        monkeypatch.setenv("COMP_LINE", line)
        return LineComplete(pulsetrain, {}, "pulsetrain", VARIABLE).complete().split()

    return ask


@pytest.fixture
def at(canned_hub):
    """The options that name a hub with two jobs, three nodes and two alerts."""
    canned_hub.answers |= {
        "GET /v1/status": status(
            job("gpt-7b"), past=[job("gpt-old", state="past"), job("bert", state="past")]
        ),
        "GET /v1/nodes": {"nodes": NODES},
        "GET /v1/alerts": {"alerts": [alert(id="a1"), alert(id="b2", state="resolved")]},
    }
    return f"--hub {canned_hub.url} --token {canned_hub.token}"


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_each_shell_calls_this_command(cli, shell):
    done = cli("completion", shell)
    assert done.exit_code == 0
    assert f"{VARIABLE}={shell}_complete" in done.output
    assert json.loads(cli("completion", shell, "--json").output) == {
        "shell": shell, "script": script_for(shell),
    }  # fmt: skip


def test_fish_shows_a_help_with_a_comma():
    assert 'string split --max 1 ","' in script_for("fish")


def test_an_unknown_shell_is_bad_usage(cli):
    done = cli("completion", "tcsh")
    assert isinstance(done.exception, click.UsageError)
    assert "tcsh" in str(done.exception)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("pulsetrain ev", ["plain,evict"]),
        ("pulsetrain checkpoint ver", ["plain,verify"]),
        ("pulsetrain status --wa", ["plain,--watch"]),
        ("pulsetrain diagnose --device c", ["plain,cpu", "plain,cuda"]),
        ("pulsetrain completion z", ["plain,zsh"]),
        ("pulsetrain tail ste", ["plain,steps"]),
        ("pulsetrain run --nproc-per-node 8 tra", ["file,tra"]),
        ("pulsetrain run train.py da", ["file,da"]),
        ("pulsetrain serve --config ", ["file,"]),
        ("pulsetrain nosuch x", []),
    ],
)
def test_commands_flags_values_and_files(complete, line, words):
    assert complete(line) == words


def test_every_command_is_completed(complete):
    assert {word.removeprefix("plain,") for word in complete("pulsetrain ")} == set(pulsetrain.commands)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("top {at} gp", ["gpt-7b", "gpt-old"]),
        ("pending {at} ", ["gpt-7b", "gpt-old", "bert"]),
        ("analyze {at} --job b", ["bert"]),
        ("evict {at} node", ["node-a", "node-b"]),
        ("alerts {at} --ack ", ["a1"]),
    ],
)
def test_names_of_jobs_nodes_and_alerts_are_those_of_the_hub(complete, at, words, found):
    line = f"pulsetrain {words.format(at=at)}"
    assert complete(line) == [f"plain,{name}" for name in found]


def test_an_address_is_one_word_although_bash_ends_words_at_colons(complete, at, canned_hub):
    complete(f"pulsetrain stacks {at} g")
    assert canned_hub.requests


@pytest.mark.parametrize(
    "hub",
    [
        "",
        "--hub http://127.0.0.1:9",
        "--hub nonsense",
        "--hub http://127.0.0.1:9 --token '",
        "--data /proc/no",
    ],
)
def test_a_hub_that_does_not_answer_or_refuses_completes_nothing(complete, monkeypatch, tmp_path, hub):
    monkeypatch.setenv("PULSETRAIN_DATA", str(tmp_path))
    monkeypatch.delenv("PULSETRAIN_HUB", raising=False)
    assert complete(f"pulsetrain top {hub} ") == []


def test_an_answer_of_another_kind_completes_nothing(complete, at, canned_hub):
    canned_hub.answers["GET /v1/status"] = {"jobs": [{}]}
    assert complete(f"pulsetrain top {at} ") == []


BASH = """
source <({python} -m pulsetrain.cli completion bash)
complete -p pulsetrain
pulsetrain() {{ {python} -m pulsetrain.cli "$@"; }}
export -f pulsetrain
COMP_LINE=$1 COMP_POINT=${{#1}} COMP_WORDS=($1) COMP_CWORD=1
_pulsetrain_completion "$2"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_a_real_bash_sources_the_script_and_completes(tmp_path):
    command = tmp_path / "pulsetrain"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m pulsetrain.cli "$@"\n')
    command.chmod(0o755)
    script = BASH.format(python=sys.executable)
    done = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", "pulsetrain checkpoint e", str(command)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        cwd=ROOT,
        env=os.environ | {"PULSETRAIN_DATA": str(tmp_path)},
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["complete -o nosort -F _pulsetrain_completion pulsetrain", "export"]
