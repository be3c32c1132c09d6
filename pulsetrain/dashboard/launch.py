"""How the dashboard is started as a child of the hub: its command line and its environment."""

from __future__ import annotations

import sys
from pathlib import Path

from pulsetrain.dashboard.host_names import VARIABLE

_OPTIONS = {
    "server.headless": "true",
    "server.fileWatcherType": "none",
    "server.runOnSave": "false",
    "server.disconnectedSessionTTL": "20",
    "server.enableWebsocketCompression": "false",
    "browser.gatherUsageStats": "false",
    "client.toolbarMode": "minimal",
    "client.showErrorDetails": "none",
    "client.showErrorLinks": "false",
    "runner.magicEnabled": "false",
    "runner.postScriptGC": "true",
    "global.developmentMode": "false",
    "global.disableWidgetStateDuplicationWarning": "true",  # a click sets fields that have a default
    "logger.level": "warning",
    "theme.light.primaryColor": "#0B6BCB",
    "theme.light.backgroundColor": "#ffffff",
    "theme.light.secondaryBackgroundColor": "#f4f5f7",
    "theme.light.textColor": "#20242b",
    "theme.light.borderColor": "#dfe3e8",
    "theme.dark.primaryColor": "#5AA9E6",
    "theme.dark.backgroundColor": "#14171c",
    "theme.dark.secondaryBackgroundColor": "#1d2128",
    "theme.dark.textColor": "#e6e8eb",
    "theme.dark.borderColor": "#2d333c",
    "theme.baseRadius": "4px",
    "theme.baseFontSize": "14",
    "theme.headingFontSizes": '["1.35rem","1.15rem","1rem"]',
    "theme.showWidgetBorder": "true",
}


def command(port: int, *, address: str = "127.0.0.1", tls: tuple[str, str] | None = None) -> list[str]:
    """The command that serves the dashboard on `port` of `address`. It stays in the foreground and ends on
    SIGTERM.

    `address` is loopback unless somebody who puts their own guard in front of the page says otherwise:
    whoever reaches the page can evict nodes. `tls` are the files of a certificate and its key.
    """
    app = Path(__file__).with_name("server.py")
    options = _OPTIONS | {"server.address": address, "server.port": str(port)}
    if tls is not None:
        options |= {"server.sslCertFile": tls[0], "server.sslKeyFile": tls[1]}
    flags = [f"--{name}={value}" for name, value in options.items()]
    return [sys.executable, "-P", "-m", "pulsetrain.dashboard.process", "run", str(app), *flags]


def environment(hub_url: str, token: str, ca: str = "", hosts: str = "") -> dict[str, str]:
    """Return the variables to add to the child's environment: where the hub is, its token, its CA if any, and
    the names under which browsers may reach the dashboard.

    The token is not in the command line, where `ps` would show it.
    """
    return {
        "PULSETRAIN_HUB": hub_url,
        "PULSETRAIN_TOKEN": token,
        VARIABLE: hosts,
        "STREAMLIT_BROWSER_GATHER_USAGE_STATS": "false",
        **({"PULSETRAIN_CA": ca} if ca else {}),
    }
