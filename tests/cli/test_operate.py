"""What people ask a running hub."""

import json

import pytest

from pulsetrain.core.errors import AuthError, UsageError

NODE = {
    "node": "node-a", "job": "gpt", "state": "active", "node_rank": 0, "ranks": [0, 1], "address": "10.0.0.1",
    "last_heartbeat_age_s": 0.4, "reason": "", "gauges": {"dropped_rows": 3, "dropped_spool_full": 3},
}  # fmt: skip
ALERT = {"id": "a1", "state": "firing", "severity": "critical", "kind": "hang", "subject": "5", "count": 1}


def test_nodes_are_a_table(ask, canned_hub):
    canned_hub.answers["GET /v1/nodes"] = {"nodes": [NODE]}
    assert "node-a  gpt  active" in ask("nodes").output
    assert json.loads(ask("nodes", "--json").output)[0]["ranks"] == [0, 1]


def test_a_wrong_token_is_said(cli, canned_hub):
    done = cli("nodes", "--hub", canned_hub.url, "--token", "wrong")
    assert isinstance(done.exception, AuthError)


def test_alerts_are_acknowledged_before_they_are_listed(ask, canned_hub):
    canned_hub.answers |= {"GET /v1/alerts": {"alerts": [ALERT]}, "POST /v1/alerts/a1/ack": {}}
    done = ask("alerts", "--ack", "a1", "--note", "cable")
    assert [key for key, _ in canned_hub.requests] == ["POST /v1/alerts/a1/ack", "GET /v1/alerts"]
    assert canned_hub.requests[0][1]["note"] == "cable"
    assert "a1  firing" in done.output


def test_a_silence_matches_fields_for_some_minutes(ask, canned_hub):
    canned_hub.answers |= {"GET /v1/alerts": {"alerts": []}, "POST /v1/silences": {"id": "s1", "covers": 0}}
    done = ask("alerts", "--silence", "kind=straggler", "--silence", "node=n-7", "--minutes", 30)
    body = canned_hub.requests[0][1]
    assert body["matchers"] == {"kind": "straggler", "node": "n-7"}
    assert body["seconds"] == 1800
    assert done.output == "Silence s1 covers 0 active alert(s).\nNo alert.\n"


def test_silences_are_listed_and_ended(ask, canned_hub):
    silence = {"id": "s1", "matchers": {"kind": "hang"}, "author": "ann", "comment": "", "expires_ns": 1}
    silence["covers"] = 2
    canned_hub.answers |= {"GET /v1/silences": {"silences": [silence]}, "POST /v1/silences/s1/end": {}}
    done = ask("alerts", "--silences", "--end-silence", "s1")
    assert canned_hub.requests[0][0] == "POST /v1/silences/s1/end"
    assert "s1  {'kind': 'hang'}  2       ann" in done.output


def test_a_silence_without_a_value_is_bad_usage(ask, canned_hub):
    done = ask("alerts", "--silence", "straggler")
    assert isinstance(done.exception, UsageError)
    assert "kind=straggler" in str(done.exception)
    assert not canned_hub.requests


def test_incidents(ask, canned_hub):
    incident = {"id": "i1", "job": "gpt", "root": "rank 5", "victims": ["rank 1"], "suggested_action": "look"}
    canned_hub.answers["GET /v1/incidents"] = {"incidents": [incident]}
    assert "rank 5  rank 1   look" in ask("incidents").output
    canned_hub.answers["GET /v1/incidents"] = {"incidents": []}
    assert ask("incidents").output == "No incident.\n"


TREE = [
    {
        "frame": "MainThread", "ranks": "0-1",
        "children": [{"frame": "f (a.py:1)", "ranks": "0-1", "children": []}],
    },
    {"frame": "loader", "ranks": "0-1", "children": []},
]  # fmt: skip


@pytest.mark.parametrize(("state", "status"), [("outlier", 1), ("alike", 0)])
def test_stacks_that_differ_are_status_1(ask, canned_hub, state, status):
    canned_hub.answers["POST /v1/jobs/gpt/stacks"] = {
        "state": state, "sentence": "S.", "tree": TREE, "blind": [{"ranks": "7", "reason": "gone"}],
    }  # fmt: skip
    done = ask("stacks", "gpt")
    assert done.return_value == status
    assert done.output.splitlines() == [
        "S.", "  0-1: MainThread", "  0-1: f (a.py:1)", "  not read: ranks 7: gone",
    ]  # fmt: skip
    assert "loader" in ask("stacks", "gpt", "--threads").output


def test_the_last_stacks_are_not_read_anew(ask, canned_hub):
    canned_hub.answers["GET /v1/jobs/gpt/stacks"] = {}
    done = ask("stacks", "gpt", "--last")
    assert (done.output, done.return_value) == ("No stacks of gpt have been read.\n", 0)


PLAN = {
    "node": "node-b", "job": "gpt", "state": "active", "ranks": [2, 3], "standby": None, "resume_step": 9,
    "lost_steps": 0, "expected_s": None, "why_not": "", "allowed": True,
}  # fmt: skip


def test_names_and_reasons_of_a_job_cannot_change_the_terminal(ask, canned_hub):
    canned_hub.answers["POST /v1/evict"] = PLAN | {"job": "gpt\x1b[2J", "why_not": "no\x07"}
    done = ask("evict", "node-b", "--reason", "fan", "--dry-run")
    assert "of job gpt?[2J" in done.output
    assert "No?." in done.output


def test_a_dry_run_says_what_an_eviction_would_cost(ask, canned_hub):
    canned_hub.answers["POST /v1/evict"] = PLAN
    done = ask("evict", "node-b", "--reason", "fan", "--dry-run")
    assert canned_hub.requests[0][1] | {"actor": ""} == {
        "node": "node-b", "reason": "fan", "dry_run": True, "actor": "",
    }  # fmt: skip
    assert done.output.splitlines() == [
        "would evict node-b (active) of job gpt",
        "  node-b runs ranks 2-3 of gpt.",
        "  No standby is free.",
        "  The job resumes from step 9; 0 steps are done again.",
    ]


def test_a_dry_run_says_that_a_job_without_a_checkpoint_begins_anew(ask, canned_hub):
    canned_hub.answers["POST /v1/evict"] = PLAN | {"resume_step": -1, "lost_steps": 1201}
    done = ask("evict", "node-b", "--reason", "fan", "--dry-run")
    assert "the job would start from its first step" in done.output
    assert "-1" not in done.output


def test_a_dry_run_that_the_hub_would_refuse_says_why_and_is_status_1(ask, canned_hub):
    why = "node 'node-b': its job is preempted; try again when it runs"
    canned_hub.answers["POST /v1/evict"] = PLAN | {"allowed": False, "why_not": why}
    done = ask("evict", "node-b", "--reason", "fan", "--dry-run")
    assert done.output.startswith("would not evict node-b")
    assert why in done.output
    assert done.return_value == 1


def test_an_eviction_may_name_the_job_of_the_node(ask, canned_hub):
    canned_hub.answers["POST /v1/evict"] = PLAN
    ask("evict", "node-b", "--job", "gpt", "--reason", "fan")
    assert canned_hub.requests[-1][1]["job"] == "gpt"


def test_an_eviction_says_what_the_scheduler_is_asked_for(ask, canned_hub):
    asked = ["drain node-b in Slurm", "submit a replacement to Slurm"]
    canned_hub.answers["POST /v1/evict"] = PLAN | {"scheduler": asked}
    done = ask("evict", "node-b", "--reason", "fan", "--drain")
    assert [f"  Asked of the scheduler: {one}." for one in asked] == done.output.splitlines()[-2:]
    assert canned_hub.requests[-1][1]["drain"] is True


def test_an_eviction_is_not_a_dry_run_unless_asked_for(ask, canned_hub):
    canned_hub.answers["POST /v1/evict"] = PLAN
    assert ask("evict", "node-b", "--reason", "fan").output.startswith("evicting node-b")
    assert canned_hub.requests[0][1]["dry_run"] is False


def test_the_hub_is_found_by_its_data_folder(cli, canned_hub, tmp_path):
    canned_hub.answers["GET /v1/nodes"] = {"nodes": []}
    (tmp_path / "hub.json").write_text(json.dumps({"url": canned_hub.url, "token": canned_hub.token}))
    assert cli("nodes", "--data", tmp_path).output == "No node has joined this hub.\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--ack", ""), "--ack is empty"),
        (("--end-silence", " "), "--end-silence is empty"),
        (("--note", "known"), "--note goes with --ack or --silence"),
        (("--ack", "a1", "--silence", "kind"), "give FIELD=VALUE"),
        (("--ack", "a1", "--silence", "kind=x", "--minutes", "0"), "--minutes 0"),
    ],
)
def test_what_means_nothing_is_refused_before_anything_is_done(ask, canned_hub, options, words):
    done = ask("alerts", *options)
    assert isinstance(done.exception, UsageError)
    assert words in str(done.exception)
    assert canned_hub.requests == []
