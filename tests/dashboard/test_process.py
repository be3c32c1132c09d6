"""The dashboard's process."""

import streamlit.web.cli

from pulsetrain.dashboard import process


def test_the_process_is_named_before_streamlit_starts(monkeypatch):
    done = []
    monkeypatch.setattr(process, "set_process_title", lambda title: done.append(title))
    monkeypatch.setattr(streamlit.web.cli, "main", lambda prog_name: done.append(prog_name))
    process.main()
    assert done == ["dashboard of hub", "streamlit"]
