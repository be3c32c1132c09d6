"""How long a change of view takes, and that one whose end stood before is refused."""

from __future__ import annotations

import sys

import pytest

from tests.repository import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
from browsing.visits import StoodBefore, Visit, change_s

pytestmark = [pytest.mark.browser, pytest.mark.integration]

LATER = "setTimeout(() => document.body.insertAdjacentHTML('beforeend', '<p class=t>sim-00003</p>'), 300)"


@pytest.fixture
def shown(page):
    page.set_content(f'<button onclick="{LATER}">Find</button><p class=empty>none</p>')
    return page


def visit(changed, *, clicks=True):
    def click(page):
        page.get_by_text("Find").click()

    return Visit(name="nodes", path="nodes", ready="p", change=click if clicks else None, changed=changed)


def test_the_time_ends_when_what_did_not_stand_before_stands(shown):
    assert 0.3 <= change_s(shown, visit(".empty && .t:has-text('sim-00003')")) < 10


def test_an_end_that_stood_before_the_change_is_refused(shown):
    with pytest.raises(StoodBefore, match=r"'\.empty' stands before"):
        change_s(shown, visit(".empty"))


def test_a_page_without_a_view_to_change_has_no_time(shown):
    assert change_s(shown, visit("", clicks=False)) is None
