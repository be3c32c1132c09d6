"""What the zygote imports before it forks. Forking itself is in test_zygote."""

import os
import sys

import pytest

from pulsetrain.agent.processes import zygote_main

NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Import little, and leave the garbage collector and the path of this process alone."""
    monkeypatch.setattr(zygote_main, "PRELOAD", ("json", "no_such_module_of_torch"))
    monkeypatch.setattr(zygote_main.gc, "freeze", lambda: None)
    monkeypatch.setattr(zygote_main.gc, "collect", lambda: 0)
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_the_users_modules_are_found_first_in_the_users_folder(tmp_path):
    (tmp_path / "preloaded_by_test.py").write_text("import os\nSEEN = os.environ.get('" + NVML + "')\n")
    assert zygote_main.preload(["preloaded_by_test"], [str(tmp_path)]) >= 0
    module = sys.modules.pop("preloaded_by_test")
    assert module.__file__ == str(tmp_path / "preloaded_by_test.py")
    assert module.SEEN == "1"
    assert NVML not in os.environ


def test_a_rank_searches_the_users_folder_only_where_its_script_says_so(tmp_path):
    """It is put there when the script runs, and not at all with PYTHONSAFEPATH."""
    before = list(sys.path)
    zygote_main.preload(["json"], [str(tmp_path)])
    assert sys.path == before


def test_a_setting_of_the_users_own_stays(monkeypatch):
    monkeypatch.setenv(NVML, "0")
    zygote_main.preload([], [])
    assert os.environ[NVML] == "0"


def test_what_a_users_module_raises_is_not_swallowed(tmp_path):
    (tmp_path / "broken_by_test.py").write_text("raise RuntimeError('no licence')")
    with pytest.raises(RuntimeError, match="no licence"):
        zygote_main.preload(["broken_by_test"], [str(tmp_path)])
