"""Refreshes of a page that was left."""

from types import SimpleNamespace

import pytest

from pulsetrain.dashboard.late_refreshes import without_late


@pytest.mark.parametrize(
    ("parts", "page", "is_run"),
    [
        (["strip"], "stacks", True),
        (["strip"], "nodes", False),
        ([], "nodes", True),  # the whole of another page: the browser goes there
    ],
)
def test_a_refresh_of_another_page_than_the_one_shown_is_not_run(parts, page, is_run):
    done = []
    runner = SimpleNamespace(_pages_manager=SimpleNamespace(current_page_script_hash="stacks"))
    asked = SimpleNamespace(fragment_id_queue=parts, page_script_hash=page)
    without_late(lambda _runner, each: done.append(each))(runner, asked)
    assert bool(done) is is_run
