"""A setting comes from the file, the environment or a flag; a wrong one is named with what is allowed."""

from __future__ import annotations

import ast
import dataclasses
from dataclasses import dataclass
from pathlib import Path

import pytest

from pulsetrain.core.config import CONFIG_CLASSES, config_classes, load, read_toml
from pulsetrain.core.errors import ConfigError
from tests.repository import ROOT


@dataclass(frozen=True, kw_only=True)
class Example:
    name: str = "x"
    count: int = 1
    ratio: float = 0.5
    on: bool = False
    folder: Path | None = None

    def __post_init__(self):
        if self.count < 0:
            raise ValueError(f"count = {self.count}: allowed 0 or more")


def test_defaults_hold_where_nothing_is_given():
    assert load(Example, "demo") == Example()


def test_a_flag_wins_over_the_environment_and_that_over_the_file():
    file = {"demo": {"name": "file", "count": 2, "ratio": 0.25}}
    environ = {"PULSETRAIN_DEMO_NAME": "environ", "PULSETRAIN_DEMO_COUNT": "3"}
    loaded = load(Example, "demo", file=file, environ=environ, flags={"name": "flag", "count": None})
    assert loaded == Example(name="flag", count=3, ratio=0.25)


def test_text_of_the_environment_becomes_the_type_of_the_key():
    environ = {"PULSETRAIN_DEMO_RATIO": "2", "PULSETRAIN_DEMO_ON": "Yes", "PULSETRAIN_DEMO_FOLDER": "/x"}
    assert load(Example, "demo", environ=environ) == Example(ratio=2.0, on=True, folder=Path("/x"))


def test_variables_of_other_components_and_unknown_ones_are_left_alone():
    environ = {"PULSETRAIN_OTHER_NAME": "no", "PULSETRAIN_DEMO_NONSENSE": "no", "HOME": "/root"}
    assert load(Example, "demo", environ=environ) == Example()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"nonsense": 1}, r"unknown key demo\.nonsense; allowed: count, folder, name, on, ratio"),
        ({"count": "many"}, r"demo\.count = 'many': not a whole number"),
        ({"count": "3"}, r"demo\.count = '3': not a whole number"),
        ({"count": 2.5}, r"demo\.count = 2\.5: not a whole number"),
        ({"count": float("inf")}, r"demo\.count = inf: not a whole number"),
        ({"count": True}, r"demo\.count = True: not a whole number"),
        ({"ratio": "0.5"}, r"demo\.ratio = '0\.5': not a number"),
        ({"ratio": float("nan")}, r"demo\.ratio = nan: not a number"),
        ({"ratio": float("inf")}, r"demo\.ratio = inf: not a number"),
        ({"ratio": False}, r"demo\.ratio = False: not a number"),
        ({"on": "true"}, r"demo\.on = 'true': not a boolean; allowed: true, false"),
        ({"on": 1}, r"demo\.on = 1: not a boolean; allowed: true, false"),
        ({"name": ["a"]}, r"demo\.name = \['a'\]: not a string"),
        ({"folder": 3}, r"demo\.folder = 3: not a path"),
        ({"count": -1}, r"demo: count = -1: allowed 0 or more"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(values, words):
    with pytest.raises(ConfigError, match=words) as caught:
        load(Example, "demo", file={"demo": values})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("COUNT", "2.5", r"PULSETRAIN_DEMO_COUNT: demo\.count = '2\.5': not a whole number"),
        ("COUNT", "1e-1", r"PULSETRAIN_DEMO_COUNT: demo\.count = '1e-1': not a whole number"),
        ("COUNT", "1e999", r"PULSETRAIN_DEMO_COUNT: demo\.count = '1e999': not a whole number"),
        ("RATIO", "nan", r"PULSETRAIN_DEMO_RATIO: demo\.ratio = 'nan': not a number"),
        ("RATIO", "", r"PULSETRAIN_DEMO_RATIO: demo\.ratio = '': not a number"),
        ("ON", "perhaps", r"PULSETRAIN_DEMO_ON: demo\.on = 'perhaps': not a boolean; allowed: true, false"),
        ("COUNT", "-1", r"PULSETRAIN_DEMO_COUNT: demo: count = -1: allowed 0 or more"),
    ],
)
def test_a_wrong_variable_of_the_environment_is_named(name, text, words):
    with pytest.raises(ConfigError, match=words):
        load(Example, "demo", environ={f"PULSETRAIN_DEMO_{name}": text})


@pytest.mark.parametrize("line", ["port = 'x'", "port = -1", "nonsense = 1"])
def test_the_file_of_a_wrong_value_is_named(tmp_path, line):
    path = tmp_path / "p.toml"
    path.write_text(f"[hub]\n{line}\n")
    with pytest.raises(ConfigError, match=rf"^{path}: .*(port|nonsense)"):
        load(config_classes()["hub"], "hub", file=read_toml(path))


def test_numbers_that_lose_nothing_are_taken():
    assert load(Example, "demo", file={"demo": {"count": 1e9, "ratio": 2, "name": 77}}) == Example(
        count=1_000_000_000, ratio=2.0, name="77"
    )
    assert load(Example, "demo", environ={"PULSETRAIN_DEMO_COUNT": "1e9"}).count == 1_000_000_000
    assert load(Example, "demo", flags={"count": "2e3"}).count == 2000


def test_a_component_that_is_no_table_is_named(tmp_path):
    (tmp_path / "p.toml").write_text("hub = 3")
    with pytest.raises(ConfigError, match=r"hub = 3: not a table; write \[hub\]"):
        load(Example, "hub", file=read_toml(tmp_path / "p.toml"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"[nonsense]\n", r"unknown table \[nonsense\] in .*p\.toml; allowed: agent, .*watch"),
        (b"[hub\n", r"configuration file .*p\.toml: "),
        (b"\xff\xfe", r"configuration file .*p\.toml: "),
        (None, r"configuration file .*p\.toml: No such file"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path, text, words):
    path = tmp_path / "p.toml"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(ConfigError, match=words):
        read_toml(path)


def test_one_file_serves_all_processes(tmp_path):
    path = tmp_path / "p.toml"
    path.write_text("".join(f"[{table}]\n" for table in CONFIG_CLASSES))
    assert read_toml(path) == {table: {} for table in CONFIG_CLASSES}


def test_every_listed_class_is_a_frozen_dataclass_with_a_default_for_every_key_but_notify_kind():
    for table, cls in config_classes().items():
        assert dataclasses.is_dataclass(cls), table
        assert cls.__dataclass_params__.frozen, table
        required = [f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING]
        required = [name for name in required if table != "notify" or name != "kind"]
        factories = {f.name for f in dataclasses.fields(cls) if f.default_factory is not dataclasses.MISSING}
        assert set(required) <= factories, table


def test_every_class_that_is_loaded_anywhere_is_listed_under_its_table():
    listed = {(name.rpartition(":")[2], table) for table, name in CONFIG_CLASSES.items()}
    loaded = {call for path in (ROOT / "pulsetrain").rglob("*.py") for call in _load_calls(path)}
    assert loaded
    assert loaded <= listed


def _load_calls(path):
    """(class, table) of each call ``load(Class, "table", ...)`` in a file."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text)) if "load(" in text else ():
        if not isinstance(node, ast.Call) or getattr(node.func, "id", "") != "load" or len(node.args) != 2:
            continue
        cls, table = node.args
        if isinstance(cls, ast.Name) and isinstance(table, ast.Constant):
            yield cls.id, table.value
