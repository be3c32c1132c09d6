"""The page Overview."""

from pulsetrain.core.errors import UsageError

STEP = {
    "attempt": 0,
    "step": 7,
    "start_ns": 10**18,
    "step_ns": 250_000_000,
    "tokens_per_s": 1000.0,
    "loss": 2.5,
}
FINDING = {
    "severity": "critical", "kind": "hang", "subject_type": "rank", "subject": "5", "summary": "It <hangs>.",
    "confidence": 0.97, "ts_ns": 10**18, "times": 1,
}  # fmt: skip


def test_the_verdict_stands_above_figures_and_evidence(draw, source):
    source.stored |= {"curve": [STEP], "findings": [FINDING]}
    shown = draw("overview")
    assert "Rank 5 is <b>stopped</b>." in shown.text
    assert "2.5000" in shown.text
    assert shown.rows()[0][1:5] == ["hang", "rank 5", "It <hangs>.", "97%"]
    assert 'href="rank?job=gpt&amp;rank=5' in shown.html
    assert len(shown.app.get("echarts_chart")) == 1


def test_five_seconds_say_who_since_when_how_sure_what_is_done_and_what_to_do(draw, source):
    job = source.answers["status"]["jobs"][0]
    why = "The job may only pause."
    job["pending_hang"] = {"rank": 5, "since_ns": 1, "act_at_ns": None, "why": why}
    job["findings"] = [{**FINDING, "evidence": "{}"}]
    source.answers["incidents"] = [{"job": "gpt", "root": "rank 5", "suggested_action": "Read its stack."}]
    shown = draw("overview")
    for words in ("hung", "97% sure", "ago", why, "Read its stack."):
        assert words in shown.text
    assert 'href="rank?job=gpt&amp;rank=5"' in shown.html
    assert 'href="incidents?job=gpt"' in shown.html


def test_a_job_that_the_hub_does_not_know_is_named_above_the_others(draw):
    text = draw("overview", job="nosuch").text
    assert text.index("The hub knows no job nosuch.") < text.index("Rank 5 is")


def test_a_finding_that_is_open_is_not_shown_as_old(draw, source):
    source.stored |= {"curve": [STEP], "findings": [FINDING]}
    assert draw("overview").rows()[0][5].endswith(" ago")
    source.answers["status"]["jobs"][0]["findings"] = [{**FINDING, "evidence": "{}"}]
    assert draw("overview").rows()[0][5] == "still open"


def test_a_finding_of_an_attempt_that_is_over_is_not_open_because_it_came_again(draw, source):
    before = {**FINDING, "ts_ns": 10**18 - 10**12}
    source.stored |= {"curve": [STEP], "findings": [FINDING, before]}
    source.answers["status"]["jobs"][0]["findings"] = [{**FINDING, "evidence": "{}"}]
    now, then = (row[5] for row in draw("overview").rows()[:2])
    assert (now, then[-4:]) == ("still open", " ago")


def test_another_job_that_has_not_begun_has_no_step(draw, source):
    other = {**source.answers["status"]["jobs"][0], "job": "bert", "step": -1}
    source.answers["status"]["jobs"].append(other)
    assert draw("overview", job="gpt").rows()[0][3] == "-"


HANG = {"rank": 5, "since_ns": 1, "act_at_ns": None, "why": "It may only pause."}


def test_a_hang_is_not_decided_before_its_cost_was_shown_and_a_reason_given(draw, source):
    source.answers["status"]["jobs"][0]["pending_hang"] = HANG
    shown = draw("overview").click("hang_now")
    assert source.client.done == [("decide_hang", "gpt", "now", "dry run from the dashboard", True)]
    assert "All ranks are ended and started again" in shown.text
    shown.click("hang_decide")
    assert len(source.client.done) == 1
    shown.app.text_input(key="hang_reason").set_value("it will not come back")
    shown.click("hang_decide")
    assert source.client.done[1] == ("decide_hang", "gpt", "now", "it will not come back", False)
    assert source.client.seen == {"rank": 5, "since_ns": 1}
    assert "gpt is restarted now: it will not come back" in shown.app.success[0].value


def test_a_refused_decision_cannot_be_confirmed(draw, source):
    source.answers["status"]["jobs"][0]["pending_hang"] = HANG
    source.client.refusal = UsageError("job 'gpt' has no hang")
    shown = draw("overview").click("hang_wait")
    assert "The hub refuses: job 'gpt' has no hang." in shown.text
    assert shown.app.button(key="hang_decide").disabled


def test_what_the_hub_says_is_never_html(draw, source):
    source.stored["findings"] = [FINDING]
    shown = draw("overview")
    assert "<b>stopped" not in shown.html
    assert "<hangs>" not in shown.html


def test_other_jobs_are_a_table(draw, source):
    other = {**source.answers["status"]["jobs"][0], "job": "bert", "step": 1234}
    source.answers["status"]["jobs"].append(other)
    row = draw("overview").rows()[0]
    assert (row[0], row[3]) == ("bert", "1,234")


def test_a_hub_without_jobs_says_how_to_start_one(draw, source):
    source.answers["status"] = {"jobs": [], "hub": {}}
    assert "pulsetrain run script.py" in draw("overview", job="").text


def test_the_history_is_that_of_the_chosen_time(draw, source):
    source.stored["curve"] = [STEP]
    draw("overview", **{"from": "2026-11-25T03:00", "to": "2026-11-25T03:30"})
    asked = [dict(options) for view, _, options in source.asked if view in ("curve", "events")]
    assert [o for o in asked if o.get("from_ns")] == [
        {"from_ns": 1_795_575_600 * 10**9, "to_ns": 1_795_577_400 * 10**9}
    ] * 2
    source.stored["curve"] = []
    assert "no completed step of this job is in this time" in draw("overview", last="1 day").text


def test_without_a_chosen_time_nothing_more_is_asked(draw, source):
    draw("overview")
    assert {view for view, _, _ in source.asked} == {"jobs", "curve", "events", "findings"}
    assert not any("to_ns" in dict(options) for _, _, options in source.asked)
