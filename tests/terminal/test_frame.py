"""One screen of `pulsetrain top`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.terminal.frame import frame, plain, whole_seconds
from pulsetrain.terminal.view import Answers, view
from tests.terminal.answers import HANG, INCIDENT, PENDING, alert, job, status

HUNG = job(says="hung", findings=[HANG], pending_hang=PENDING)


def seen(*jobs, past=(), hub=None, **answers):
    return view(Answers(status=status(*jobs, past=past, **(hub or {})), **answers), here_ns=0)


def text(shown, width=80, height=24, **options):
    return plain(frame(shown, width=width, height=height, **options))


def test_a_small_terminal_shows_verdict_progress_ranks_nodes_and_alerts():
    shown = text(seen(job(), alerts=[alert(kind="data_stall", summary="Data stalls.")]), keys=True)
    for words in (
        "http://head:8780", "14:13:20 UTC",  # where, when
        "● gpt healthy since 2026-09-21 14:10:00 UTC, 3 min 20 s ago", "gpt is healthy.",
        "step 1,234 · 820 ms a step · attempt 1 · 4 ranks",
        "slowest ranks, 30 steps", "rank 3   +12.3%    457 ms  node-10",
        "nodes: 1 lost, 1 standby, 2 active", "✕ node-3",
        "alerts: 1 open", "■ data_stall 40 s ago Data stalls.",
        "q quit",
    ):  # fmt: skip
        assert words in shown, words


def test_a_pending_restart_counts_down_and_says_how_to_stop_it():
    shown = text(seen(HUNG, incidents=[INCIDENT]))
    assert "Restart in 1 min 30 s. Rank 3 hangs." in shown
    assert "pulsetrain pending gpt --wait 30 --reason TEXT" in shown
    assert "What to do: Read its stack." in shown


def test_a_hang_without_a_restart_says_how_to_restart():
    hang = PENDING | {"act_at_ns": None}
    assert "Restart it: pulsetrain pending gpt --now --reason TEXT" in text(
        seen(HUNG | {"pending_hang": hang})
    )


@pytest.mark.parametrize("pending", [PENDING, PENDING | {"act_at_ns": None}])
def test_a_command_to_copy_has_the_name_as_a_shell_reads_it(pending):
    shown = text(seen(HUNG | {"job": "a b", "pending_hang": pending}))
    assert "pulsetrain pending 'a b' --" in shown


def test_information_is_no_open_alert():
    alerts = [alert(id="1"), alert(id="2", severity="info")]
    assert "alerts: 1 open, 1 of information" in text(seen(job(), alerts=alerts))
    assert "alerts: 1 of information" in text(seen(job(), alerts=alerts[1:]))


def test_a_wide_terminal_has_the_slowest_nodes_too():
    (line,) = [each for each in text(seen(job()), width=160).splitlines() if "slowest nodes" in each]
    assert line.index("slowest ranks") < line.index("slowest nodes") < line.index("nodes: 1 lost")


def test_a_high_terminal_has_the_slowest_nodes_below_the_ranks():
    nodes = [{"node": f"n{i}", "state": "active", "ranks": [i], "reason": ""} for i in range(40)]
    lines = text(seen(job(nodes=nodes)), width=80, height=40).splitlines()
    ranks, below = (
        next(i for i, line in enumerate(lines) if word in line) for word in ("ranks,", "slowest n")
    )
    assert ranks < below
    assert lines[below + 1].startswith("node-10")


def test_a_narrow_terminal_stacks_the_tables():
    lines = text(seen(job()), width=40, height=40).splitlines()
    assert not [each for each in lines if "slowest ranks" in each and "nodes:" in each]
    assert [each for each in lines if each.startswith("nodes:")]


def test_stale_data_is_said_first_and_no_restart_is_counted_down():
    shown = text(seen(job(), HUNG | {"job": "bert"}, age_s=12.0, problem="The hub is away, for 12 s now"))
    lines = shown.splitlines()
    assert lines[0].endswith("STALE: 12 s old")
    assert lines[1].startswith("The hub is away, for 12 s now. What follows is what it said last.")
    assert "It last said: gpt is healthy." in shown
    assert "●" not in shown
    assert "Restart in" not in shown


def test_a_late_answer_has_its_age():
    assert text(seen(job(), age_s=3.2)).splitlines()[0].endswith("answer of 3 s ago")


def test_several_jobs_are_a_list_with_the_chosen_one_in_full():
    jobs = seen(job("a"), job("b", "hung"))
    assert "> ■ hung       b   3 min 20 s  b is hung." in text(jobs)
    assert "> ● healthy    a   3 min 20 s  a is healthy." in text(jobs, chosen="a")
    assert "up/down other job" in text(jobs, keys=True)
    assert "up/down" not in text(seen(job()), keys=True)


def test_of_many_jobs_those_around_the_chosen_one_are_listed():
    jobs = seen(*(job(f"job-{n:02d}") for n in range(30)))
    shown = text(jobs, chosen="job-20")
    assert "> ● healthy    job-20" in shown
    assert "and 24 more jobs" in shown
    assert "job-02" not in shown


def test_of_many_nodes_the_worst_are_shown_and_the_others_counted():
    nodes = [{"node": f"n{i}", "state": "active", "ranks": [i], "reason": ""} for i in range(1536)]
    nodes.append({"node": "zz", "state": "lost", "ranks": [], "reason": "silent"})
    shown = text(seen(job(nodes=nodes)))
    assert "nodes: 1 lost, 1,536 active" in shown
    assert "✕ zz" in shown
    assert "more nodes" in shown


def test_alerts_that_do_not_fit_are_counted():
    alerts = [alert(id=str(n), summary=f"Alert {n}.") for n in range(50)]
    assert "more alerts" in text(seen(job(), alerts=alerts))


def test_a_hub_without_jobs_says_how_to_start_one():
    assert "No job has joined this hub" in text(seen())


def test_a_recording_has_no_nodes_and_no_ranking():
    shown = text(seen(past=[job("old", "recorded", state="past", nodes=[], slowest=None)]))
    assert "old is recorded." in shown
    assert "slowest" not in shown


def test_a_hub_that_only_observes_says_so():
    assert "observe only" in text(seen(job(), hub={"observe_only": True}))


def test_without_an_end_of_the_screen_nothing_is_filled_up():
    lines = text(seen(job()), height=None).splitlines()
    assert len(lines) < 24
    assert lines[-1] == "alerts: none open"


@given(
    width=st.integers(1, 240),
    height=st.integers(1, 70),
    jobs=st.integers(0, 12),
    nodes=st.integers(0, 40),
    alerts=st.integers(0, 30),
    sentence=st.text(max_size=300),
    stale=st.booleans(),
)
def test_every_screen_is_as_large_as_the_terminal(width, height, jobs, nodes, alerts, sentence, stale):
    verdict = {"state": "hung", "sentence": sentence, "since_ns": 1}
    many = [{"node": f"n{i}" * 9, "state": "active", "ranks": [i], "reason": sentence} for i in range(nodes)]
    shown = seen(
        *(HUNG | {"job": f"j{i}", "verdict": verdict, "nodes": many} for i in range(jobs)),
        alerts=[alert(id=str(i), job="j0", summary=sentence) for i in range(alerts)],
        age_s=20.0 if stale else 0.0,
    )
    lines = frame(shown, width=width, height=height, keys=True)
    assert len(lines) == height
    assert max(line.cell_len for line in lines) <= max(width, 24)


@pytest.mark.parametrize(("seconds", "words"), [(0.2, "0 s"), (33.4, "33 s"), (200, "3 min 20 s")])
def test_time_that_is_left_is_in_whole_seconds(seconds, words):
    assert whole_seconds(seconds) == words
