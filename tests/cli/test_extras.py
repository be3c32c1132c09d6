"""A command that needs an extra says which one, in one line."""

import re
import subprocess
import sys
import tomllib

import click
import pytest
from click.testing import CliRunner

from pulsetrain.cli.extras import EXTRAS_OF_MODULE, EdgeGroup, extra_of
from tests.repository import ROOT

MODULE_OF_PACKAGE = {"kafka-python": "kafka", "nvidia-ml-py": "pynvml"}

BLOCKED = """
import sys
from pulsetrain.cli.extras import EXTRAS_OF_MODULE

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in EXTRAS_OF_MODULE:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
"""


def without_extras(code, *args):
    """Run code in a process in which no module of an extra can be imported."""
    return subprocess.run(
        [sys.executable, "-c", BLOCKED + code, *args],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@click.group(cls=EdgeGroup)
def root():
    """A command line with one command in a group."""


@root.group()
def store():
    """A group."""


@store.command()
@click.argument("module")
def load(module):
    """Fail as an import of `module` does."""
    raise ModuleNotFoundError(f"No module named {module!r}", name=module)


def test_a_missing_module_of_an_extra_is_one_line_with_the_command():
    error = (
        CliRunner()
        .invoke(root, ["store", "load", "chdb.session"], prog_name="pulsetrain", standalone_mode=False)
        .exception
    )
    assert error.exit_code == 2
    assert (
        error.format_message() == 'pulsetrain store load needs the hub extra: pip install "pulsetrain[hub]"'
    )


def test_a_module_that_no_extra_installs_is_a_bug_and_stays_one():
    done = CliRunner().invoke(root, ["store", "load", "nosuch"], standalone_mode=False)
    assert isinstance(done.exception, ModuleNotFoundError)


def test_an_import_error_without_a_name_belongs_to_no_extra():
    assert extra_of(ModuleNotFoundError("no name"), "serve") is None


def test_of_several_extras_an_agent_needs_the_one_for_kafka():
    error = ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow")
    assert [extra_of(error, command) for command in ("serve", "agent", "run")] == ["hub", "kafka", "kafka"]


def test_every_package_of_an_extra_is_known():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in extras.keys() - {"dev", "jobs"}:  # no command needs these
        for requirement in extras[extra]:
            package = re.split(r"[\[<>=~! ]", requirement)[0]
            if package == "pulsetrain":  # an extra that includes another
                continue
            module = MODULE_OF_PACKAGE.get(package, package.replace("-", "_"))
            assert extra in EXTRAS_OF_MODULE.get(module, ()), f"{package} of extra {extra}"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("words", "command", "extra"),
    [
        (["serve", "--no-dashboard"], "pulsetrain serve", "hub"),
        (["analyze", "--job", "j", "--store", "chdb:///tmp/none"], "pulsetrain analyze", "hub"),
    ],
)
def test_without_the_extra_the_command_ends_with_status_2(words, command, extra):
    done = without_extras("from pulsetrain.cli import main; main()", *words)
    assert done.returncode == 2, done.stderr
    assert done.stderr == f'{command} needs the {extra} extra: pip install "pulsetrain[{extra}]"\n'


@pytest.mark.integration
def test_every_help_works_without_any_extra():
    code = """
import click
from pulsetrain.cli import pulsetrain

def walk(group, path):
    for name, command in group.commands.items():
        yield [*path, name]
        if isinstance(command, click.Group):
            yield from walk(command, [*path, name])

for words in ([], *walk(pulsetrain, [])):
    pulsetrain.main([*words, "--help"], standalone_mode=False)
"""
    done = without_extras(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: ") > 20
