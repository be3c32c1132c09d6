"""Every command has help, an example and a page; every key is documented; bad usage is one line."""

import subprocess
import sys

import click
import pytest

from pulsetrain.cli import pulsetrain
from pulsetrain.cli.config_reference import keys
from pulsetrain.core.config import CONFIG_CLASSES, config_classes
from tests.repository import ROOT


def commands(group, prefix=()):
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*prefix, name))
        else:
            yield (*prefix, name), command


COMMANDS = dict(commands(pulsetrain))


def run(*args):
    return subprocess.run(
        [sys.executable, "-m", "pulsetrain.cli", *args],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(path):
    assert f"pulsetrain {' '.join(path)}" in (COMMANDS[path].help or "")


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_a_page(path):
    page = ROOT / "docs" / "commands" / f"{path[0]}.md"
    assert f"pulsetrain {' '.join(path)}" in page.read_text()


@pytest.mark.parametrize("table", CONFIG_CLASSES)
def test_every_configuration_key_is_documented(table):
    page = (ROOT / "docs" / "configuration.md").read_text()
    title = f"## [{'notify.NAME' if table == 'notify' else table}]\n"
    section = page.partition(title)[2].partition("\n## ")[0]
    for key in keys(config_classes()[table]):
        assert key.meaning, f"{table}.{key.name} has no docstring"
        assert f"| `{key.name}` |" in section


@pytest.mark.integration
@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--bogus"], "--bogus"),
        (["status", "--bogus"], "--bogus"),
        (["nosuch"], "nosuch"),
        (["status", "--hub", "nonsense"], "nonsense"),
        (["evict", "a"], "--reason"),
        (["serve", "--port", "99999999"], "99999999"),
        (["serve", "--config", "/nonexistent.toml"], "/nonexistent.toml"),
        (["serve", "--data", "/proc/nowhere"], "/proc/nowhere"),
    ],
)
def test_bad_usage_is_one_line_that_names_the_value_and_status_2(args, words):
    done = run(*args)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert words in done.stderr
