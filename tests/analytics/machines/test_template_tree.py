from __future__ import annotations

import pytest
from drain3.drain import Drain
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.analytics.machines.template_tree import TemplateLimits, TemplateTree

WORDS = st.sampled_from(["rank", "node", "failed", "to", "open", "x1", "42", "<n>", "<*>", "loss", "a", "b"])
LINES = st.lists(st.lists(WORDS, max_size=6).map(" ".join), max_size=60)


@given(LINES, st.integers(3, 6), st.integers(2, 5), st.integers(1, 8))
def test_lines_are_grouped_as_the_reference_implementation_groups_them(lines, depth, children, templates):
    reference = Drain(depth=depth, sim_th=0.5, max_children=children, max_clusters=templates)
    tree = TemplateTree(TemplateLimits(prefix_words=depth - 3, children=children, templates=templates))
    for line in lines:
        expected, _ = reference.add_log_message(line)
        number = tree.add(line)
        assert number == expected.cluster_id
        assert tree.text(number) == expected.get_template()


def test_words_that_differ_become_a_wildcard():
    tree = TemplateTree()
    first = tree.add("failed to open file one")
    assert tree.add("failed to open file two") == first
    assert tree.text(first) == "failed to open file <*>"


def test_of_lines_that_begin_alike_the_most_similar_template_is_taken():
    tree = TemplateTree(TemplateLimits(prefix_words=1))
    assert [tree.add(line) for line in ("start one two three four", "start five six seven eight")] == [1, 2]
    assert [tree.add(line) for line in ("start one two nine four", "start five six nine eight")] == [1, 2]
    assert tree.text(1) == "start one two <*> four"


def test_lines_of_another_length_or_another_beginning_are_another_template():
    tree = TemplateTree()
    numbers = [tree.add(line) for line in ("lost a peer", "lost a peer again", "found a peer", "")]
    assert numbers == [1, 2, 3, 4]


@pytest.mark.parametrize("line", ["", "one", "two words"])
def test_a_short_line_has_a_template_of_its_own(line):
    tree = TemplateTree()
    assert tree.add(line) == tree.add(line) == 1
    assert tree.text(1) == line


def test_the_template_that_was_unused_for_longest_is_forgotten():
    tree = TemplateTree(TemplateLimits(templates=2))
    tree.add("first line")
    tree.add("second")
    tree.add("first line")
    tree.add("a third of them")
    assert (tree.text(1), tree.text(2), tree.text(3)) == ("first line", "", "a third of them")
    assert tree.add("second") == 4


def test_an_unknown_template_has_no_text():
    assert TemplateTree().text(7) == ""
