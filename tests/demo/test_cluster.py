"""The demo's nodes and the reference run, as far as they need no process."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.demo import cluster, reaper


def test_the_example_is_found_in_a_clone_and_named_where_it_is_missing(tmp_path):
    assert cluster.find_script().name == "train_gpt.py"
    with pytest.raises(UsageError, match=r"which is neither at .*train_gpt.py nor at"):
        cluster.find_script(tmp_path / "site-packages" / "pulsetrain")


def test_the_example_is_found_inside_an_installed_package(tmp_path):
    script = tmp_path / "pulsetrain" / "examples" / "train_gpt.py"
    script.parent.mkdir(parents=True)
    script.touch()
    assert cluster.find_script(tmp_path / "pulsetrain") == script


def test_nothing_of_ours_or_torchruns_reaches_the_job(monkeypatch, tmp_path):
    for name in ("PULSETRAIN_HUB", "TORCHELASTIC_RUN_ID", "RANK"):
        monkeypatch.setenv(name, "1")
    env = cluster.clean_environment("m", tmp_path / "tmp")
    assert env[reaper.MARK] == "m"
    assert Path(env["TMPDIR"]).is_dir()
    assert not {"PULSETRAIN_HUB", "TORCHELASTIC_RUN_ID", "RANK"} & env.keys()
