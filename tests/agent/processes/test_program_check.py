"""What is said of a program before anything is started."""

import sys
import zipfile
from contextlib import nullcontext
from importlib.machinery import ModuleSpec

import pytest

from pulsetrain.agent.launch import search_path
from pulsetrain.agent.processes.program_check import check_program
from pulsetrain.agent.processes.rank import Program
from pulsetrain.core.errors import UsageError


@pytest.fixture
def folder(tmp_path):
    for name in ("empty", "training"):
        (tmp_path / name).mkdir()
    (tmp_path / "training" / "__main__.py").touch()
    (tmp_path / "train.py").touch()
    with zipfile.ZipFile(tmp_path / "packed.pyz", "w") as archive:
        archive.writestr("__main__.py", "")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("train.py", ""),
        ("training", ""),
        ("packed.pyz", ""),
        ("empty", "script 'empty': a folder without a __main__.py"),
        ("gone.py", "script 'gone.py': no such file"),
    ],
)
def test_a_script_is_what_python_runs(folder, name, error):
    with pytest.raises(UsageError, match=error) if error else nullcontext():
        check_program(Program(argv=(name,), mode="script", cwd=folder))


class EditableFinder:
    """What an editable install puts onto `sys.meta_path` where its packages are on no path."""

    @staticmethod
    def find_spec(name, path, target=None):
        return ModuleSpec(name, None) if name == "mapped" else None


class BrokenFinder:
    @staticmethod
    def find_spec(name, path, target=None):
        raise RuntimeError("its mapping is gone")


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("mapped", ""),
        ("mapped.train", ""),
        ("train", ""),
        ("gone.train", "module 'gone.train': not found from "),
    ],
)
def test_a_module_may_be_found_by_any_of_pythons_finders(folder, monkeypatch, name, error):
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, EditableFinder])
    with pytest.raises(UsageError, match=error) if error else nullcontext():
        check_program(Program(argv=(name,), mode="module", cwd=folder))
    assert "mapped" not in sys.modules


def test_a_finder_that_fails_leaves_it_to_the_ranks_to_say_so(folder, monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, BrokenFinder])
    check_program(Program(argv=("gone",), mode="module", cwd=folder))


def test_what_a_folder_imports_is_in_it(folder):
    assert search_path(str(folder / "training")) == folder / "training"
    assert search_path(str(folder / "train.py")) == folder


def test_a_folder_gives_a_job_its_name(folder):
    assert Program(argv=("training",), cwd=folder).name == "training"
    assert Program(argv=(".",), cwd=folder / "training").name == "training"
