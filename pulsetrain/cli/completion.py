"""Completion of words on the command line: the script for a shell, and what the script asks for."""

from __future__ import annotations

import os
from typing import ClassVar

import click
from click.shell_completion import (
    BashComplete,
    FishComplete,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from pulsetrain.cli.options import json_option
from pulsetrain.cli.root import print_json, pulsetrain

VARIABLE = "_PULSETRAIN_COMPLETE"
SHELLS = ("bash", "zsh", "fish")

_BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' response type value
    response=$(env COMP_LINE="${COMP_LINE:0:COMP_POINT}" %(complete_var)s=bash_complete "$1")
    COMPREPLY=()
    for completion in $response; do
        IFS=',' read -r type value <<< "$completion"
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class LineComplete(BashComplete):
    """Bash, with the line as it was typed. Bash's own words end at each colon, so an address has several."""

    name: ClassVar[str] = "bash"
    source_template: ClassVar[str] = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the one that is typed, and what is typed of it."""
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)[1:]
        if not words or line[-1:].isspace():
            return words, ""
        return words[:-1], words[-1]


class WholeHelpComplete(FishComplete):
    """Fish, with the whole help of a word. click's own script cuts it at the first comma."""

    name: ClassVar[str] = "fish"
    source_template: ClassVar[str] = FishComplete.source_template.replace(
        'string split ","', 'string split --max 1 ","'
    )


add_completion_class(LineComplete)
add_completion_class(WholeHelpComplete)


@pulsetrain.command()
@click.argument("shell", type=click.Choice(SHELLS))
@json_option
def completion(shell: str, as_json: bool) -> None:
    """Print a script that completes commands, flags, and names of jobs and nodes in SHELL.

    Example: pulsetrain completion bash
    """
    script = script_for(shell)
    if as_json:
        print_json({"shell": shell, "script": script})
    else:
        click.echo(script.strip())


def script_for(shell: str) -> str:
    """Return the script for "bash", "zsh" or "fish"."""
    made = get_completion_class(shell)
    assert made is not None, f"click completes in {shell}"
    return made(pulsetrain, {}, "pulsetrain", VARIABLE).source_template % {
        "complete_func": "_pulsetrain_completion",
        "complete_var": VARIABLE,
        "prog_name": "pulsetrain",
    }
