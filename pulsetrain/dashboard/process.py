"""The dashboard's process: Streamlit under a title of its own."""

from __future__ import annotations

from pulsetrain.core.process_title import set_process_title
from pulsetrain.dashboard.late_refreshes import drop_late_refreshes
from pulsetrain.dashboard.unsent_pages import keep_unsent_pages


def main() -> None:
    """``python -m pulsetrain.dashboard.process run APP OPTION...``: as ``python -m streamlit``."""
    set_process_title("dashboard of hub")
    from streamlit.web import bootstrap, cli

    # its options are on the command line. Streamlit would look for configuration files 15 times a second
    bootstrap._install_config_watchers = lambda flag_options: None
    drop_late_refreshes()
    keep_unsent_pages()
    cli.main(prog_name="streamlit")


if __name__ == "__main__":
    main()
