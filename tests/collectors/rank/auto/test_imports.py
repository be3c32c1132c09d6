"""Hooks on modules that are imported later: told once, and never in the way of an import."""

from __future__ import annotations

import importlib
import json
import sys
import zipfile

import pytest

from pulsetrain.collectors.rank.auto.imports import ImportWatch


@pytest.fixture
def watch(monkeypatch, tmp_path):
    """A watch over modules in a folder of their own; `faults` counts what went wrong."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    faults = []
    watch = ImportWatch(lambda: faults.append(1))
    watch.faults, watch.folder = faults, tmp_path
    yield watch
    for name in [n for n in sys.modules if n.startswith("later")]:
        del sys.modules[name]


def write(watch, name, text):
    path = watch.folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    importlib.invalidate_caches()


def test_a_module_that_is_there_is_reported_at_once(watch):
    seen = []
    watch.when_imported("json", seen.append)
    assert seen == [json]
    assert watch not in sys.meta_path


def test_a_later_import_is_reported_after_the_module_has_run(watch):
    write(watch, "later_a.py", "VALUE = 3")
    seen = []
    watch.when_imported("later_a", lambda module: seen.append(module.VALUE))
    module = importlib.import_module("later_a")
    assert seen == [3]
    assert module.__spec__.loader.get_source("later_a") == "VALUE = 3"
    assert type(module.__loader__).__name__ == "SourceFileLoader"


def test_a_module_of_a_package_is_reported(watch):
    write(watch, "later_b/__init__.py", "")
    write(watch, "later_b/trainer.py", "class Trainer: pass")
    seen = []
    watch.when_imported("later_b.trainer", lambda module: seen.append(module.Trainer.__name__))
    importlib.import_module("later_b")
    assert seen == []
    importlib.import_module("later_b.trainer")
    assert seen == ["Trainer"]


def test_a_hook_that_raises_is_counted_and_the_import_succeeds(watch):
    write(watch, "later_c.py", "VALUE = 1")

    def raises(module):
        raise RuntimeError("ours")

    watch.when_imported("later_c", raises)
    assert importlib.import_module("later_c").VALUE == 1
    assert watch.faults == [1]


def test_an_import_that_fails_fails_as_it_would_and_the_next_one_is_reported(watch):
    write(watch, "later_d.py", "raise ValueError('theirs')")
    seen = []
    watch.when_imported("later_d", seen.append)
    with pytest.raises(ValueError, match="theirs"):
        importlib.import_module("later_d")
    assert seen == []
    write(watch, "later_d.py", "ALL_IS_WELL = True  # of another length, so the cached code is stale")
    importlib.import_module("later_d")
    assert len(seen) == 1


def test_a_module_that_does_not_exist_is_not_found(watch):
    watch.when_imported("later_nowhere", lambda module: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("later_nowhere")


def test_two_that_ask_all_other_finders_do_not_ask_each_other_for_ever(watch):
    write(watch, "later_twice.py", "")
    seen = []
    other = ImportWatch(lambda: seen.append("fault"))
    for one in (watch, other):
        one.when_imported("later_twice", lambda module: seen.append(module.__name__))
    importlib.import_module("later_twice")
    assert seen == ["later_twice", "later_twice"]
    assert watch.faults == []


def test_a_module_of_an_archive_is_told_once_it_has_run_and_no_earlier(watch, monkeypatch):
    archive = watch.folder / "later.zip"
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr("later/__init__.py", "from later import part\nready = True\n")
        written.writestr("later/part.py", "")
    monkeypatch.syspath_prepend(archive)
    seen = []
    watch.when_imported("later", lambda module: seen.append(hasattr(module, "ready")))
    importlib.import_module("later")
    assert seen == [True]
    assert watch.faults == []
