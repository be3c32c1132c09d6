"""Random walks over the dashboard, and that a walk sees what is wrong with a page."""

from __future__ import annotations

import random
import sys

import pytest

from tests.repository import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
from browsing.clicks import ACTS
from browsing.views import restored, settle, view, whole
from browsing.walks import walk

pytestmark = [pytest.mark.browser, pytest.mark.integration]

SITE = "http://walks.test"
STYLE = "<style>.stApp { font-variant-numeric: tabular-nums }</style>"
WORDS = "Rank 5 is stopped in forward, and 7 others wait for it. Nobody else is at fault."
BODY = (
    f'<div class="stApp" data-testid="stApp"><div class="strip">{WORDS}</div>'
    '<div class="empty">No node is chosen.</div>%s</div>'
)


@pytest.fixture
def served(page):
    """Serves one document for every address of a site that does not exist."""

    def serve(body, *, head=f"<title>Nodes</title>{STYLE}"):
        document = f"<!doctype html><head>{head}</head><body>{body}</body>"
        page.context.route(f"{SITE}/**", lambda r: r.fulfill(body=document, content_type="text/html"))
        page.goto(f"{SITE}/nodes?job=gpt")
        return page

    return serve


def test_nothing_is_wrong_with_a_whole_page(served):
    assert whole(served(BODY % ""), "gpt") == []


@pytest.mark.parametrize(
    ("body", "head", "problem"),
    [
        ('<div class="stApp"></div>', f"<title>Nodes</title>{STYLE}", "it is white: 0 letters"),
        (BODY % "", "<title>Nodes</title>", "its style is lost"),
        (BODY % "", STYLE, "it has no title"),
        (
            BODY % '<div data-testid="stException">KeyError</div>',
            f"<title>Nodes</title>{STYLE}",
            "an exception: KeyError",
        ),
        (
            BODY % '<div role="dialog">Bad message format</div>',
            f"<title>Nodes</title>{STYLE}",
            "a dialog: Bad message format",
        ),
    ],
)
def test_what_is_wrong_with_a_page_is_said(served, body, head, problem):
    assert whole(served(body, head=head), "gpt") == [problem]


def test_a_job_that_left_the_address_is_said(served):
    assert whole(served(BODY % ""), "other") == ["the job is not in the address"]


def test_a_field_that_the_address_does_not_restore_is_said(served):
    page = served(BODY % '<input aria-label="Find">')
    assert restored(page.context, page, longest_s=1.0) == []
    page.get_by_label("Find").fill("node-3")
    (problem,) = restored(page.context, page, longest_s=1.0)
    assert "['Find', '']" in problem
    assert "instead of [['Find', 'node-3']]" in problem


def test_an_error_in_the_console_is_a_problem_of_the_walk(page):
    document = f"<title>Nodes</title>{STYLE}{BODY % ''}<script>console.error('lost')</script>"
    page.context.route(f"{SITE}/**", lambda r: r.fulfill(body=document, content_type="text/html"))
    found = walk(page.context, SITE, "gpt", seed=1, clicks=0)
    assert [problem for problem in found.problems if "lost" in problem]


@pytest.mark.parametrize(
    ("path", "kinds"),
    [
        ("heatmap", ("page", "choice", "menu", "type", "button", "link", "cell")),
        ("timeline", ("unfold", "lane", "canvas")),
        ("stacks", ("switch", "browser")),
    ],
)
def test_a_walk_finds_the_controls_of_a_page(page, site, path, kinds):
    for kind in kinds:
        page.goto(f"{site}/{path}?job=gpt")
        settle(page)
        assert any(ACTS[kind](page, random.Random(seed)) for seed in range(4)), kind


def test_what_is_chosen_is_part_of_the_view(page, site):
    page.goto(f"{site}/heatmap?job=gpt&by=stage&window=last+100")
    settle(page)
    assert view(page)["chosen"] == ["stage"]
    assert ["Window", "last 100"] in view(page)["inputs"]
    page.goto(f"{site}/stacks?job=gpt&threads=true")
    settle(page)
    assert view(page)["switches"] == [["all threads", True]]


def test_a_random_walk_finds_every_page_whole_and_restored_by_its_address(page, site):
    found = walk(page.context, site, "gpt", seed=7, clicks=6)
    assert found.problems == [], found.done
    assert found.clicks == 6
