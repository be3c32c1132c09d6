"""What may be done with a job, and what it would cost."""

import pytest

from pulsetrain.dashboard.models.moves import choices, cost, places, under_way

MOVE = {"what": "migrate", "node": "b", "actor": "ann", "reason": "kernel", "newer_than": 7}
UPDATE = {**MOVE, "what": "update", "node": ""}


@pytest.mark.parametrize(
    ("state", "move", "node", "offered"),
    [
        ("running", None, "", ["preempt", "resize"]),
        ("waiting", None, "", ["preempt"]),
        ("running", None, "b", ["preempt", "migrate", "resize"]),
        ("running", MOVE, "b", ["resume"]),
        ("preempted", MOVE, "", ["resume"]),
        ("running", UPDATE, "b", ["preempt", "migrate", "resize"]),
        ("finished", None, "b", []),
        ("past", None, "", []),
    ],
)
def test_what_can_be_asked_for_follows_from_the_jobs_state(state, move, node, offered):
    assert choices({"state": state, "move": move}, node) == offered


def test_a_job_can_go_on_on_its_own_nodes_and_on_standbys():
    about = {"job": "j", "connected": True, "state": "standby"}
    nodes = [
        {**about, "node": "b", "state": "active"},
        {**about, "node": "a"},
        {**about, "node": "c", "connected": False},
        {**about, "node": "d", "state": "evicted"},
        {**about, "node": "e", "job": "other"},
    ]
    assert places(nodes, "j") == ["a", "b"]


def test_what_is_under_way_says_what_it_waits_for_until_the_job_stops():
    job = {"state": "running", "move": MOVE}
    assert under_way(job) == "ann takes it off b: kernel. It waits for a checkpoint of step 7 or later."
    assert under_way({**job, "state": "preempted"}) == "ann takes it off b: kernel."
    assert under_way({"state": "running"}) == ""
    assert under_way({**job, "move": UPDATE}).startswith("ann updates its program: kernel.")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"why_not": "no standby"}, "The hub refuses: no standby."),
        ({"resume_step": -1, "lost_steps": 8}, "it would begin anew, and 8 steps"),
        ({"what": "migrate"}, "with z in the place of b"),
        (
            {"process_dump": "processes are not dumped (no criu on a)"},
            "Processes are not dumped (no criu on a).",
        ),
        ({"process_dump": ""}, "Its processes are dumped, and no step is done again."),
        ({"what": "resume"}, "Then the job starts from the newest step"),
        ({"what": "resume", "waits_for": "pool"}, "The job goes on once the pool has devices for it."),
        ({"what": "resume", "on_nodes": ["c", "d"]}, "Then the job starts on c, d from the newest step"),
        (
            {
                "what": "resize",
                "job": "j",
                "devices": 8,
                "nodes": 2,
                "how": "nodes",
                "dry_run": True,
                "price": {"stop_s": None},
            },
            "would run on 2 nodes",
        ),
        (
            {"what": "resize", "job": "j", "devices": 8, "nodes": 2, "how": "own", "dry_run": False},
            "Each rank has one of its own.",
        ),
    ],
)
def test_the_cost_is_said_in_sentences(changes, words):
    answer = {
        "what": "preempt",
        "node": "b",
        "standby": "z",
        "resume_step": 7,
        "lost_steps": 0,
        "why_not": "",
    }
    assert words in " ".join(cost(answer | changes))
