"""How commands print."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.cli.root import print_json, print_table, with_evidence


@pytest.mark.parametrize("text", ["not json", '{"victims": [1'])
def test_evidence_that_is_no_json_stays_a_string(text):
    assert with_evidence({"evidence": text}) == {"evidence": text}


def test_evidence_is_an_object_at_any_depth():
    report = {"jobs": [{"findings": ({"evidence": '{"a": 1}'}, {"evidence": ""}, {"evidence": {"b": 2}})}]}
    findings = with_evidence(report)["jobs"][0]["findings"]
    assert [f["evidence"] for f in findings] == [{"a": 1}, {}, {"b": 2}]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=8,
)


@given(json_values)
def test_values_without_evidence_do_not_change(value):
    assert with_evidence(value) == value


def test_json_is_one_document(capsys):
    print_json([{"kind": "hang", "evidence": '{"rank": 5}'}])
    assert json.loads(capsys.readouterr().out) == [{"kind": "hang", "evidence": {"rank": 5}}]


def test_json_has_no_number_that_is_not_finite(capsys):
    infinite = {"flops": float("nan"), "evidence": '{"rates": [NaN, 1.5]}', "ends": (float("inf"),)}
    print_json([infinite])

    def refuse(constant):
        pytest.fail(f"{constant} is no JSON")

    answer = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert answer == [{"flops": None, "evidence": {"rates": [None, 1.5]}, "ends": [None]}]


def test_columns_are_aligned_and_a_missing_cell_is_empty(capsys):
    print_table([{"node": "a", "state": "active"}, {"node": "longer"}], ("node", "state"), "None.")
    assert capsys.readouterr().out.splitlines() == ["node    state", "a       active", "longer"]


def test_what_a_rank_prints_cannot_change_the_terminal(capsys):
    print_table([{"node": "a\x1b]0;owned\x07", "reason": "two\nlines\x9b2J"}], ("node", "reason"), "None.")
    assert capsys.readouterr().out.splitlines() == ["node         reason", "a?]0;owned?  two lines?2J"]


def test_an_empty_table_is_a_sentence(capsys):
    print_table([], ("node",), "No node.")
    assert capsys.readouterr().out == "No node.\n"
