"""Findings of a site's log rules, and the first errors of a job."""

import json

import pyarrow as pa

from pulsetrain.analytics.machines.rule_matches import find, first_errors
from pulsetrain.analytics.verdict import Finding, Healthy
from pulsetrain.records.site_rules import ACTIONS
from pulsetrain.recovery.hardware_verdicts import HardwareVerdicts
from pulsetrain.recovery.response import Response

S = 10**9


def match(ts_ns, rank=3, node="a", *, line="ibv failed", lines=1, rule="ib"):
    detail = {
        "rule": rule, "kind": "rdma_error", "severity": "critical", "action": "inform", "advice": "look",
        "source": "stderr", "line": line, "lines": lines,
    }  # fmt: skip
    return {"ts_ns": ts_ns, "node": node, "rank": rank, "detail": json.dumps(detail)}


def found(*rows, now_ns=20 * S):
    return find(pa.Table.from_pylist(list(rows)), now_ns=now_ns, job="j", attempt=2)


def test_one_finding_for_each_rule_and_rank_of_the_rules_kind():
    ours, theirs = found(match(2 * S, lines=4), match(5 * S, line="other"), match(3 * S, rank=7))
    assert isinstance(ours, Finding)
    assert (ours.kind, ours.subject_type, ours.subject, ours.severity) == (
        "rdma_error",
        "rank",
        "3",
        "critical",
    )
    assert (ours.evidence["lines"], ours.evidence["first_ns"], ours.ts_ns) == (5, 2 * S, 5 * S)
    assert ours.evidence["examples"] == ["ibv failed", "other"]
    assert theirs.subject == "7"


def test_a_rule_may_ask_for_the_eviction_of_the_lines_node():
    detail = json.loads(match(S)["detail"]) | {"action": "evict_at_step"}
    (finding,) = found({**match(S), "detail": json.dumps(detail)})
    verdicts = HardwareVerdicts()
    verdicts.take([finding])
    (verdict,) = verdicts.evicting()
    assert (verdict.node, verdict.response, verdict.policy) == ("a", Response.EVICT_AT_STEP, "log rule ib")
    verdicts.take(found(match(S)))
    assert verdicts.evicting() == []


def test_actions_of_rules_are_responses_of_the_controller():
    assert ("mark", *(str(response) for response in Response)) == ACTIONS


def test_a_line_of_the_kernel_names_the_node():
    (finding,) = found(match(S, rank=-1, node="n7"))
    assert (finding.subject_type, finding.subject) == ("node", "n7")


def test_what_is_old_is_no_finding_of_a_running_job_but_one_of_a_scan():
    assert isinstance(found(match(S), now_ns=400 * S)[0], Healthy)
    assert isinstance(found(match(S), now_ns=0)[0], Finding)


def test_details_of_other_writers_are_left_out():
    rows = [{**match(S), "detail": text} for text in ("", "no json", "[]", '{"rule": 3}', '{"rule": "a"}')]
    assert isinstance(found(*rows)[0], Healthy)


def row(ts_ns, rank, kind, attempt=0, **detail):
    return {
        "ts_ns": ts_ns,
        "attempt": attempt,
        "node": f"n{rank}",
        "rank": rank,
        "kind": kind,
        "detail": json.dumps(detail),
    }


def message(text, stack=""):
    return {"message": text, "extraInfo": {"py_callstack": stack, "timestamp": "1"}}


def errors_of(*rows):
    return first_errors(pa.Table.from_pylist(list(rows)))


def test_first_errors_have_the_form_of_dlrovers_report():
    answer = errors_of(
        row(1 * S, 784, "first_error", local_rank=0, message=message("ERROR: x")),
        row(2 * S, 784, "first_error", local_rank=0, message=message("NVLink error", "Traceback")),
        row(3 * S, 5, "first_error", local_rank=5, message=message("Connection closed by peer", "Traceback")),
        row(4 * S, 784, "rank_exit", code=-6),
        row(9 * S, 784, "first_error", attempt=1, local_rank=0, message=message("later", "Traceback")),
    )  # fmt: skip
    assert answer["culprit"] == 784
    assert answer["ranks"]["784"] == {
        "node": "n784",
        "attempt": 0,
        "local_rank": 0,
        "exitcode": -6,
        "message": message("NVLink error", "Traceback"),
        "datetime": "1970-01-01T00:00:02.000+00:00",
    }
    assert answer["ranks"]["5"]["exitcode"] is None


def test_an_error_that_says_that_a_peer_is_gone_is_not_the_first():
    lost = row(
        1 * S, 0, "first_error", message=message("RuntimeError: Connection closed by peer", "Traceback")
    )
    cause = row(2 * S, 1, "first_error", message=message("ValueError: bad batch", "Traceback"))
    later = row(9 * S, 0, "first_error", attempt=1, message=message("KeyError: x", "Traceback"))
    assert errors_of(lost, cause)["culprit"] == 1
    assert errors_of(lost, later)["culprit"] == -1


def test_what_a_rank_printed_and_survived_does_not_hide_what_ended_it():
    survived = row(1 * S, 5, "first_error", message=message("ImportError: no flash_attn", "Traceback"))
    early = row(2 * S, 2, "first_error", message=message("ImportError: no flash_attn", "Traceback"))
    fatal = row(90 * S, 2, "first_error", message=message("KeyError: 'x'", "Traceback"))
    after = row(91 * S, 5, "first_error", message=message("RuntimeError: Connection closed by peer", "T"))
    exits = row(92 * S, 2, "rank_exit", code=1), row(93 * S, 5, "rank_exit", code=1)
    answer = errors_of(survived, early, fatal, after, *exits)
    assert answer["culprit"] == 2
    assert answer["ranks"]["2"]["message"]["message"] == "KeyError: 'x'"


def test_the_rank_that_an_error_ended_comes_before_one_that_was_ended_by_others():
    survived = row(1 * S, 5, "first_error", message=message("OSError: retrying", "Traceback"))
    fatal = row(90 * S, 2, "first_error", message=message("KeyError: 'x'", "Traceback"))
    ended = row(92 * S, 2, "rank_exit", code=1)
    assert errors_of(survived, fatal, ended)["culprit"] == 2


def test_an_attempt_that_no_error_ended_comes_after_one_that_an_error_ended():
    survived = row(1 * S, 2, "first_error", message=message("OSError: retrying", "Traceback"))
    fatal = row(90 * S, 2, "first_error", attempt=1, message=message("KeyError: 'x'", "Traceback"))
    ended = row(92 * S, 2, "rank_exit", attempt=1, code=1)
    answer = errors_of(survived, fatal, ended)
    assert (answer["culprit"], answer["ranks"]["2"]["attempt"]) == (2, 1)


def test_a_job_without_errors_has_no_culprit():
    empty = pa.table({n: [] for n in ("ts_ns", "attempt", "node", "rank", "kind", "detail")})
    assert first_errors(empty) == {"culprit": -1, "ranks": {}}
