"""Which node is under which switch: Slurm's topology.conf and TOML."""

import pytest

from pulsetrain.core.errors import ConfigError
from pulsetrain.records.network_layout import NetworkLayout, expand, read

SLURM = """
# two leaves and a spine
SwitchName=s0 Nodes=n[0-3],head
switchname=s1 nodes=n[4-7] LinkSpeed=400
SwitchName=spine Switches=s[0-1]   # all
"""
TOML = """
[[switch]]
name = "s0-rail0"
rail = "r0"
nodes = ["n[0-1]"]
[[switch]]
name = "s0-rail1"
rail = "r1"
nodes = ["n[0-1]"]
"""


def layout(tmp_path, text, name="topology.conf"):
    path = tmp_path / name
    path.write_text(text)
    return read(path)


def test_slurms_file_names_the_leaf_of_a_node_and_what_is_under_a_spine(tmp_path):
    slurm = layout(tmp_path, SLURM)
    assert [slurm.switch_of(n) for n in ("n0", "head", "n7", "n8")] == ["s0", "s0", "s1", ""]
    assert slurm.under("spine") == ("n0", "n1", "n2", "n3", "head", "n4", "n5", "n6", "n7")
    assert slurm.under("nosuch") == ()


def test_a_node_on_two_rails_has_a_switch_on_each(tmp_path):
    rails = layout(tmp_path, TOML, "site.toml")
    assert rails.switch_of("n1") == "s0-rail0"
    assert [rails.switch_of("n1", rail) for rail in ("r0", "r1", "r2")] == ["s0-rail0", "s0-rail1", ""]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("t.conf", "Nodes=a", "line 1: no SwitchName"),
        ("t.conf", "SwitchName=a Nodes=n[0-", "bracket is not closed"),
        ("t.conf", "SwitchName=a Nodes=n[x]", r"\[x\]"),
        ("t.conf", "SwitchName=a Nodes=n[0-999999999]", "more than"),
        ("t.conf", "SwitchName=a Switches=b\nSwitchName=b Switches=a", "below itself"),
        ("t.toml", "[[switch]]\nnodes = []", "switch 1: name is missing"),
        ("t.toml", '[[switch]]\nname = "a"\nnodes = "n0"', "not a list"),
        ("t.toml", '[[switch]]\nname = "a"\nports = 3', "unknown key 'ports'"),
        ("t.toml", "[node]\na = 1", "unknown key 'node'"),
        ("t.toml", "[[", "t.toml"),
    ],
)
def test_what_cannot_be_used_is_one_line_that_names_the_file(tmp_path, name, text, words):
    with pytest.raises(ConfigError, match=words) as refused:
        layout(tmp_path, text, name)
    assert "\n" not in str(refused.value)
    assert name in str(refused.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="nosuch: No such file"):
        read(tmp_path / "nosuch")


def test_names_without_brackets_are_themselves():
    assert expand("a,b-1,c.d") == ["a", "b-1", "c.d"]
    assert expand("") == []
    assert NetworkLayout().switch_of("a") == ""
