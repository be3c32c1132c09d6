"""Which exit was the cause of a crash, and which were its consequences."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.analytics.crash import Attempt, cascade_rule, explain, suspicion
from pulsetrain.analytics.verdict import Healthy
from pulsetrain.protocol.messages import RankExit

S = 1_000_000_000
NOW = 1_790_000_000 * S
ATTEMPT = Attempt(job="gpt", attempt=0, now_ns=NOW, size=8, node_of=lambda rank: f"node{rank // 2}")


def explained(exits, lost_nodes=()):
    return explain(ATTEMPT, exits, lost_nodes)


GLOO = "RuntimeError: [gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.2]:4021"


def exit_(rank: int, at_s: float, code: int, *lines: str, node: str = "") -> RankExit:
    return RankExit(
        node=node or f"node{rank // 2}",
        ts_ns=NOW + int(at_s * S),
        job="gpt",
        attempt=0,
        rank=rank,
        pid=1,
        code=code,
        last_lines=lines,
    )


def test_the_rank_that_died_first_is_the_root_and_the_rest_its_cascade():
    exits = (exit_(5, 0.0, -9), exit_(4, 0.3, 1, GLOO), exit_(0, 0.4, -15))
    (finding,) = explained(exits)
    assert (finding.kind, finding.subject) == ("crash", "5")
    assert finding.evidence["victims"] == [0, 4]
    assert "SIGKILL" in finding.summary


def test_a_victim_that_was_seen_first_is_not_the_root():
    exits = (exit_(4, 0.0, 1, GLOO), exit_(5, 0.2, -11, "Fatal Python error: Segmentation fault"))
    assert explained(exits)[0].subject == "5"


def test_an_exception_is_quoted():
    exits = (exit_(3, 0.0, 1, "Traceback", "ValueError: bad shape (3, 4)", ""), exit_(2, 0.1, 1, GLOO))
    (finding,) = explained(exits)
    assert finding.subject == "3"
    assert "bad shape" in finding.summary


def test_a_node_whose_ranks_were_killed_together_is_named():
    exits = (exit_(2, 0.0, -9), exit_(3, 0.05, -9), exit_(0, 0.4, 1, GLOO))
    (finding,) = explained(exits)
    assert (finding.subject_type, finding.subject) == ("node", "node1")


def test_the_same_error_on_every_rank_is_the_job():
    exits = tuple(exit_(r, 0.01 * r, 1, "KeyError: 'lr'") for r in range(8))
    [finding] = explained(exits)
    assert finding.subject_type == "job"
    assert "ranks ended alike (exit status 1)" in finding.summary


def test_a_lost_node_explains_the_exits_elsewhere():
    exits = (exit_(0, 0.2, 1, GLOO), exit_(7, 0.3, 1, GLOO))
    (finding,) = explained(exits, ("node2",))
    assert (finding.kind, finding.subject) == ("node_lost", "node2")
    assert finding.evidence["victims"] == [0, 7]


TIMEOUT = "[Rank 4] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9) ran for 600019 ms"


def test_where_all_others_waited_for_a_peer_the_rank_that_did_not_fail_is_named():
    """torch's own timeout ends the ranks that wait, and not the one that they wait for."""
    (finding,) = explained([exit_(r, 0.1 * r, -6, TIMEOUT) for r in range(8) if r != 5])
    assert (finding.subject, finding.evidence["nodes"]) == ("5", ["node2"])
    assert finding.evidence["victims"] == [0, 1, 2, 3, 4, 6, 7]
    assert finding.evidence["all_timed_out"]
    assert finding.confidence < 0.9


def test_one_exit_proves_nothing_about_the_other_rank():
    """A link between two ranks breaks: both wait, and torch ends one of them first."""
    attempt = Attempt(job="j", attempt=0, now_ns=9, size=2, node_of=lambda rank: f"n{rank}")
    (finding,) = explain(attempt, [exit_(0, 0.1, -6, TIMEOUT)], ())
    assert (finding.subject, "did not fail" in finding.summary) == ("0", False)


def test_a_rank_that_waits_as_well_is_not_the_one_that_all_wait_for():
    exits = [exit_(r, 0.1 * r, -6, TIMEOUT) for r in range(8) if r != 5]
    waiting = Attempt(
        job="j", attempt=0, now_ns=9, size=8, node_of=lambda rank: "n0", waiting=frozenset({5, 6})
    )
    (finding,) = explain(waiting, exits, ())
    assert finding.subject == "0"


def test_a_link_that_breaks_is_no_timeout():
    """The node on which ranks end first may have a bad port: it is counted."""
    reset = "RuntimeError: Connection reset by peer"
    (finding,) = explained([exit_(r, 0.1 * r, 1, reset) for r in (4, 0, 1)])
    assert not finding.evidence["all_timed_out"]


def test_a_node_whose_ranks_all_waited_for_a_peer_is_not_named():
    (finding,) = explained([exit_(r, 0.1 * r, -6, TIMEOUT) for r in (0, 1, 2)])
    assert finding.subject_type == "rank"
    assert "because of a peer" in finding.summary
    assert finding.evidence["all_timed_out"]
    (finding,) = explained([exit_(0, 0.0, -6), exit_(1, 0.1, -6)])
    assert (finding.subject, finding.evidence["all_timed_out"]) == ("node0", False)


def test_clean_exits_are_no_crash():
    assert isinstance(explained([exit_(0, 0.0, 0), exit_(1, 0.1, 0)])[0], Healthy)
    assert isinstance(explained([])[0], Healthy)


@given(st.permutations(range(4)))
def test_order_of_exits_changes_nothing(order):
    exits = [exit_(5, 0.0, -9), exit_(4, 0.3, 1, GLOO), exit_(0, 0.4, -15), exit_(1, 0.5, -6)]
    assert explained([exits[i] for i in order])[0].subject == "5"


@given(st.permutations(range(8)))
def test_renaming_ranks_renames_the_exit_that_was_first(names):
    exits = (exit_(5, 0.0, -9, node="x"), exit_(4, 0.3, 1, GLOO, node="y"), exit_(0, 0.4, -15, node="z"))
    renamed = tuple(
        exit_(names[e.rank], (e.ts_ns - NOW) / S, e.code, *e.last_lines, node=e.node) for e in exits
    )
    (finding,) = explained(renamed)
    assert finding.subject == str(names[5])
    assert finding.evidence["victims"] == sorted((names[0], names[4]))


def test_a_plainer_cause_is_never_less_sure():
    last = [(1, GLOO), (-15, ""), (1, "ValueError: bad shape"), (-11, "")]
    sure = [explained([exit_(3, 0.0, code, line)])[0].confidence for code, line in last]
    assert sure == sorted(sure)


@pytest.mark.parametrize(
    "exits",
    [
        (exit_(3, 0.0, -9), exit_(3, 0.0, -9)),
        (exit_(10_000, 0.0, 1, "", "   "),),
        (exit_(3, 0.0, -200),),
        (exit_(-1, -1e6, 255, "\x00" * 1000),),
        tuple(exit_(r, 0.0, 1) for r in range(64)),
    ],
)
def test_odd_exits_get_a_verdict(exits):
    (finding,) = explained(exits)
    assert finding.kind == "crash"


def test_only_exits_of_a_lost_node_are_no_crash_of_their_own():
    verdicts = explained([exit_(4, 0.0, 1), exit_(5, 0.0, 1)], ("node2",))
    assert [(f.kind, f.evidence["victims"]) for f in verdicts] == [("node_lost", [])]


def test_a_signal_of_its_own_is_a_crash_beside_a_lost_node():
    verdicts = explained([exit_(0, 0.0, -11)], ("node2",))
    assert [(f.kind, f.subject) for f in verdicts] == [("node_lost", "node2"), ("crash", "0")]


def test_exits_of_another_attempt_say_nothing():
    other = Attempt(job="gpt", attempt=1, now_ns=NOW, size=8, node_of=ATTEMPT.node_of)
    assert isinstance(explain(other, [exit_(3, 0.0, -9)], ())[0], Healthy)


@pytest.mark.parametrize(
    ("code", "line", "level"),
    [(-9, "", 3), (1, "ValueError: x", 2), (-15, "", 1), (-9, GLOO, 0)],
)
def test_suspicion_is_highest_for_a_signal_of_its_own_and_lowest_where_a_peer_is_blamed(code, line, level):
    assert suspicion(exit_(0, 0.0, code, line)) == level


def test_lines_of_a_rank_that_lost_a_peer_match_a_rule():
    assert cascade_rule([GLOO])
    assert not cascade_rule(["ValueError: bad shape"])


def test_only_where_every_node_is_lost_the_advice_names_storage():
    attempt = replace(ATTEMPT, nodes=frozenset(f"node{i}" for i in range(4)))
    some = explain(attempt, [], ("node0", "node1"))
    assert all("suggested_action" not in f.evidence for f in some)
    every = explain(attempt, [], ("node0", "node1", "node2", "node3"))
    assert len(every) == 4
    for finding in every:
        assert "newest checkpoint in storage" in finding.evidence["suggested_action"]
        assert "peer" not in finding.evidence["suggested_action"]


def test_the_nodes_of_an_attempt_may_be_unknown():
    assert "suggested_action" not in explained([], ("node0",))[0].evidence


@pytest.mark.parametrize("word", ["gloo.", "tcpstore ", "ncclSystemError.", "collective."])
def test_a_line_that_goes_on_and_on_is_searched_at_its_ends_and_holds_nobody_up(word):
    """The hub reads what ranks print last, in the loop that hears all agents."""
    line = word * (16_000 // len(word))
    began_s = time.process_time()
    assert cascade_rule([line]) == ""
    assert time.process_time() - began_s < 1.0
    assert cascade_rule(["x" * 16_000 + " Connection closed by peer"]) == "connection_closed"
