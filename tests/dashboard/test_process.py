"""The dashboard's process."""

import streamlit.web.bootstrap
import streamlit.web.cli

from pulsetrain.dashboard import process


def test_the_process_is_named_before_streamlit_starts(monkeypatch):
    done = []
    monkeypatch.setattr(process, "set_process_title", lambda title: done.append(title))
    monkeypatch.setattr(streamlit.web.cli, "main", lambda prog_name: done.append(prog_name))
    watched = streamlit.web.bootstrap._install_config_watchers
    monkeypatch.setattr(streamlit.web.bootstrap, "_install_config_watchers", watched)
    process.main()
    assert done == ["dashboard of hub", "streamlit"]
    streamlit.web.bootstrap._install_config_watchers({})  # polls for no file
    assert streamlit.web.bootstrap._install_config_watchers is not watched
