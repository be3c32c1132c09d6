"""Run a command that ends with the hub: ``python -m pulsetrain.hub.dashboard_process PARENT COMMAND...``."""

from __future__ import annotations

import os
import sys

from pulsetrain.agent.processes.zygote_protocol import die_with


def main() -> None:
    """Ask the kernel to end this process with its parent, then become the command."""
    die_with(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
