"""The dashboard's process."""

import streamlit.web.bootstrap
import streamlit.web.cli
from streamlit.runtime.scriptrunner.script_runner import ScriptRunner

from pulsetrain.dashboard import process


def test_the_process_is_named_before_streamlit_starts(monkeypatch):
    done = []
    monkeypatch.setattr(process, "set_process_title", lambda title: done.append(title))
    monkeypatch.setattr(streamlit.web.cli, "main", lambda prog_name: done.append(prog_name))
    watched = streamlit.web.bootstrap._install_config_watchers
    monkeypatch.setattr(streamlit.web.bootstrap, "_install_config_watchers", watched)
    run = ScriptRunner._run_script
    monkeypatch.setattr(ScriptRunner, "_run_script", run)
    process.main()
    assert done == ["dashboard of hub", "streamlit"]
    assert ScriptRunner._run_script.__wrapped__ is run  # without late refreshes
    streamlit.web.bootstrap._install_config_watchers({})  # polls for no file
    assert streamlit.web.bootstrap._install_config_watchers is not watched
