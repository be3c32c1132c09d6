"""The frame of every page: which job, the verdict strip, and what is said when the hub does not answer."""

import pytest
from streamlit.testing.v1 import AppTest

from pulsetrain.core.errors import AuthError, Unavailable
from pulsetrain.dashboard import page
from tests.dashboard.conftest import DrawnPage


@pytest.fixture
def run(source):
    """Run lines of a page's script."""

    def drawn(script, **address):
        app = AppTest.from_string(f"from pulsetrain.dashboard import page\n{script}", default_timeout=30)
        for key, value in address.items():
            app.query_params[key] = value
        app.run()
        assert not app.exception
        return DrawnPage(app)

    return drawn


def test_the_strip_says_how_the_job_is(run):
    text = " ".join(run("page.strip(sentence=True)").text.split())
    assert "hung gpt Rank 5 is <b>stopped</b>. step 119 · attempt 1" in text


def test_the_job_of_the_address_is_kept_and_the_first_job_is_the_default(run, source):
    other = {**source.answers["status"]["jobs"][0], "job": "bert"}
    source.answers["status"]["jobs"].append(other)
    shown = run("page.strip(sentence=True)")
    assert shown.app.query_params["job"] in ("gpt", ["gpt"])
    assert "bert" in run("page.strip(sentence=True)", job="bert").text
    assert shown.app.selectbox(key="job_menu").options == ["gpt", "bert"]


def test_a_hub_that_does_not_answer_is_said_and_nothing_is_healthy(run, source):
    source.error = Unavailable("hub does not answer")
    text = run("page.strip(sentence=True)", job="gpt").text
    assert "no data" in text
    assert "The hub is away: hub does not answer." in text


def test_a_wrong_token_is_said(run, source):
    source.error = AuthError("the token is wrong")
    assert "The hub refuses this dashboard: the token is wrong." in run("page.strip(sentence=True)").text


def test_a_hub_without_jobs(run, source):
    source.answers["status"] = {"jobs": [], "hub": {}}
    assert "No job has been seen yet." in run("page.strip(sentence=True)").text


BROKEN = """
from pulsetrain.core.errors import Unavailable

def body():
    raise Unavailable("store is away")

page.live(body)
"""


def test_a_part_that_fails_is_one_sentence(run):
    assert "store is away." in run(BROKEN).text


def test_addresses_leave_out_what_is_not_given():
    assert page.href("timeline", job="a b", ranks=3, steps="", find=None) == "timeline?job=a+b&ranks=3"


def test_a_table_marks_columns_of_numbers(run):
    shown = run("page.table(['name', 'count'], [['a', '1']], right=(1,))")
    assert '<th class="n">count</th>' in shown.html
    assert '<td>a</td><td class="n">1</td>' in shown.html


def test_sentences_are_never_html(run):
    assert "<i>" not in run("page.empty('<i>', '<i>')").html
