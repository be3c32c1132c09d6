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


@pytest.fixture
def turning(source, monkeypatch):
    """A hub whose job is healthy when it is asked first, and from then on hung, with rank 5 at fault."""
    job = source.answers["status"]["jobs"][0]
    finding = {"kind": "hang", "subject_type": "rank", "subject": "5", "severity": "critical",
               "summary": "It hangs.", "evidence": "{}", "confidence": 0.9}  # fmt: skip
    healthy = {**job, "verdict": {"state": "healthy", "sentence": "All is well.", "since_ns": 1}}
    answers = iter([{"jobs": [healthy], "hub": {}}])
    monkeypatch.setattr(source, "job", lambda _: {})
    monkeypatch.setattr(
        source, "status", lambda: next(answers, {"jobs": [{**job, "findings": [finding]}], "hub": {}})
    )


PART = """
import streamlit as st

page.strip(sentence=True)
st.html(page.named("gpt") or "nobody")
"""


def test_the_strip_and_the_page_are_of_one_moment(run, turning):
    text = run(PART, job="gpt").text
    assert "All is well." in text
    assert "rank 5" not in text


TURN = """
import streamlit as st

runs = st.session_state["runs"] = st.session_state.get("runs", 0) + 1
page.strip(sentence=True)
if runs == 1:
    page._strip(True)  # as its timer does
st.html(page.named("gpt") or "nobody")
"""


def test_where_the_strip_sees_that_somebody_is_accused_all_of_the_page_is_drawn(run, turning):
    shown = run(TURN, job="gpt")
    assert shown.app.session_state["runs"] == 2
    assert "All is well." not in shown.text
    assert shown.text.count("rank 5") == 2


ALERT = {"kind": "hang", "subject": "rank 5", "state": "firing", "severity": "critical"}


@pytest.mark.parametrize(
    ("later", "runs"), [([ALERT], 2), ([{**ALERT, "state": "resolved"}, {**ALERT, "severity": "info"}], 1)]
)
def test_where_the_strip_sees_that_the_menu_counts_another_number_all_of_the_page_is_drawn(
    run, source, monkeypatch, later, runs
):
    answers = iter([[]])
    monkeypatch.setattr(source, "alerts", lambda: next(answers, [{**alert, "job": "x"} for alert in later]))
    assert run(TURN, job="gpt").app.session_state["runs"] == runs


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


def test_a_job_that_the_hub_does_not_know_is_named(run):
    assert "The hub knows no job nosuch." in run("page.strip(sentence=True)", job="nosuch").text


TIMES = "page.keep_time('logs')\npage.strip(sentence=True, usual_time='default: all')"


def test_the_time_range_is_one_choice_in_the_frame(run):
    shown = run(TIMES).app
    menu = shown.selectbox(key="time_menu")
    assert menu.options[:2] == ["default: all", "15 minutes"]
    menu.set_value("6 hours").run()
    assert shown.query_params["last"] in ("6 hours", ["6 hours"])
    shown.selectbox(key="time_menu").set_value("from ... to (UTC)").run()
    assert "last" not in shown.query_params
    assert shown.text_input(key="time_to").value in shown.query_params["to"]
    shown.text_input(key="time_from").set_value("2026-11-25T03:00").run()
    assert shown.query_params["from"] in ("2026-11-25T03:00", ["2026-11-25T03:00"])
    shown.selectbox(key="time_menu").set_value("").run()
    assert not {"last", "from", "to"} & {*shown.query_params}


def test_every_menu_of_the_frame_shows_its_label(run, source):
    source.answers["status"]["jobs"].append({**source.answers["status"]["jobs"][0], "job": "bert"})
    shown = run(TIMES, **{"from": "2026-11-25T03:00"}).app
    labelled = [*shown.selectbox, *shown.text_input]
    assert [each.label for each in labelled] == ["Job", "Time", "From, UTC", "To, UTC"]
    assert not any(each.proto.label_visibility.value for each in labelled)


def test_the_address_restores_the_time_range(run):
    shown = run(TIMES, **{"from": "2026-11-25T03:00", "to": "2026-11-25T04:00"}).app
    assert shown.selectbox(key="time_menu").value == "from ... to (UTC)"
    assert shown.text_input(key="time_from").value == "2026-11-25T03:00"
    assert run(TIMES, last="1 day").app.selectbox(key="time_menu").value == "1 day"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("from", "3am", "time from=3am: give a date and time in UTC"),
        ("last", "2 weeks", "allowed are 15 minutes"),
    ],
)
def test_a_time_that_cannot_be_read_is_one_line(run, name, value, words):
    (warning,) = run(TIMES, **{name: value}).app.warning
    assert words in warning.value


def test_a_page_that_is_about_no_time_has_no_choice(run):
    assert not run("page.strip(sentence=True)").app.selectbox


FLIP = """
import streamlit as st

page.keep_time(st.session_state.get("shown", "logs"))
page.table(["a"], [[page.href("rank", job="gpt")]])
"""


def test_the_time_range_goes_along_to_the_next_page_and_into_links(run):
    shown = run(FLIP, last="1 day")
    assert "rank?job=gpt&last=1+day" in shown.html
    shown.app.session_state["shown"] = "heatmap"
    del shown.app.query_params["last"]
    shown.app.run()
    assert shown.app.query_params["last"] in ("1 day", ["1 day"])
    del shown.app.query_params["last"]
    shown.app.run()
    assert "last" not in shown.app.query_params
    assert "last" not in shown.html


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
