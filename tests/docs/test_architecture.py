"""The walks and the folder table of docs/architecture.md are true."""

from __future__ import annotations

import importlib
import re
import tomllib

import pytest

from tests.repository import ROOT

TEXT = (ROOT / "docs" / "architecture.md").read_text()
LONGEST_WALK = 10


def walks() -> dict[str, list[str]]:
    """File names of each numbered list under "Three walks", by its title."""
    part = TEXT.split("## Three walks")[1].split("\n## ")[0]
    sections = part.split("\n### ")[1:]
    return {
        section.splitlines()[0]: re.findall(r"^\d+\. `([^`]+)`", section, flags=re.MULTILINE)
        for section in sections
    }


WALKS = walks()


def test_there_are_three_walks():
    assert len(WALKS) == 3


@pytest.mark.parametrize("walk", WALKS.values(), ids=WALKS)
def test_a_walk_is_short_visits_each_file_once_and_every_file_imports(walk):
    assert 3 <= len(walk) <= LONGEST_WALK
    assert len(set(walk)) == len(walk)
    for path in walk:
        importlib.import_module(path.removesuffix(".py").replace("/", "."))


def test_the_folder_table_lists_every_folder_in_the_order_of_the_import_contract():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(c["layers"] for c in contracts if c.get("containers") == ["pulsetrain"])
    listed = re.findall(r"^\| `(\w+)/` \|", TEXT, flags=re.MULTILINE)
    folders = {p.parent.name for p in (ROOT / "pulsetrain").glob("*/__init__.py")}
    assert set(listed) == folders
    level = {name: i for i, layer in enumerate(reversed(layers)) for name in layer.split(" | ")}
    assert [level[name] for name in listed] == sorted(level[name] for name in listed)
