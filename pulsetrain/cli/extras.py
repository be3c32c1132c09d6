"""What a command says when a package of an optional extra is not installed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import click

EXTRAS_OF_MODULE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "chdb": ("hub",),
        "clickhouse_connect": ("hub",),
        "cryptography": ("hub",),
        "google_crc32c": ("kafka",),
        "httpx": ("hub",),
        "kafka": ("kafka",),
        "plotly": ("hub",),
        "prometheus_client": ("hub",),
        "pyarrow": ("hub", "kafka"),
        "pynvml": ("gpu",),
        "rich": ("terminal", "hub"),
        "anyio": ("hub",),
        "starlette": ("hub",),
        "streamlit": ("hub",),
        "tenacity": ("kafka",),
        "uvicorn": ("hub",),
        "uvloop": ("hub",),
    }
)
"""The extras that install each optional module. The base package has what a rank and an agent import."""

_AGENT_COMMANDS = ("run", "agent")


class MissingExtraError(click.ClickException):
    """A command needs an extra that is not installed. The exit status is 2."""

    exit_code = 2

    def __init__(self, command: str, extra: str) -> None:
        super().__init__(f'{command} needs the {extra} extra: pip install "pulsetrain[{extra}]"')


class EdgeCommand(click.Command):
    """A command that names the extra it lacks instead of ending in a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command. Raises `MissingExtraError` where an import of an optional module fails."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            extra = extra_of(error, self.name or "")
            if extra is None:
                raise
            raise MissingExtraError(ctx.command_path, extra) from error


class EdgeGroup(click.Group):
    """A group whose commands and groups behave like `EdgeCommand`."""

    command_class = EdgeCommand
    group_class = type


def extra_of(error: ModuleNotFoundError, command: str) -> str | None:
    """Return the extra that installs the missing module, None for a module that no extra installs.

    If several extras install it, agents get the one for Kafka, because they need nothing else of a hub.
    """
    extras = EXTRAS_OF_MODULE.get((error.name or "").partition(".")[0], ())
    if command in _AGENT_COMMANDS and "kafka" in extras:
        return "kafka"
    return extras[0] if extras else None
