"""The merged stacks: who is marked."""

from pulsetrain.dashboard.models.stacks import of_ranks, stack_lines, suspects


def branch(frame, ranks, *children):
    return {"frame": frame, "ranks": ranks, "children": list(children)}


TREE = branch(
    "main",
    "0-7",
    branch("all_reduce", "0-3"),
    branch("recv", "4,6-7"),
    branch("forward", "5", branch("sleep", "5")),
)


def test_only_frames_of_the_culprit_are_marked_and_not_those_of_its_victims():
    lines = stack_lines([TREE], {5})
    assert [line.frame for line in lines if line.at_fault] == ["forward", "sleep"]
    assert [line.depth for line in lines] == [0, 1, 1, 1, 1]


def test_without_a_culprit_those_who_differ_are_marked():
    assert suspects({"outliers": "4-5"}) == {4, 5}
    assert suspects({"outliers": "4-5"}, {5}) == {5}
    assert suspects({"outliers": ""}) == frozenset()


def test_a_job_may_have_any_number_of_ranks():
    tree = [branch("main", "0-99999", branch("recv", "0-3,5-99999"), branch("forward", "4"))]
    assert [line.frame for line in stack_lines(tree, {4}) if line.at_fault] == ["forward"]
    assert suspects({"outliers": "1-100"}) == {*range(1, 101)}
    assert [line.frame for line in stack_lines(of_ranks(tree, (4,)), ())] == ["main", "forward"]
    assert of_ranks(tree, (100_000,)) == []
