"""The part of Nodes that stops or moves the whole job."""

import pytest

from pulsetrain.core.errors import UsageError

COST = {"resume_step": 9, "lost_steps": 2, "standby": "node-5"}
COST["process_dump"] = "processes are not dumped (no criu on a)"


@pytest.fixture
def job(source):
    source.answers["nodes"] = []
    source.client.plan = {**COST, "attempt": 2}
    job = source.answers["status"]["jobs"][0]
    job |= {"state": "running", "move": None}
    return job


def test_nothing_is_stopped_before_its_cost_was_shown_and_a_reason_given(draw, source, job):
    shown = draw("nodes").click("move_preempt")
    assert source.client.done == [("move", "gpt", "preempt", "dry run from the dashboard", "", True)]
    assert "it would go on from step 9, and 2 steps would be done again" in shown.text
    assert "Processes are not dumped (no criu on a)." in shown.text
    shown.click("move")
    assert len(source.client.done) == 1
    shown.app.text_input(key="move_reason").set_value("noon")
    shown.click("move")
    assert source.client.done[1] == ("move", "gpt", "preempt", "noon", "", False)
    assert source.client.seen == {"attempt": 2}
    assert "asked for, noon" in shown.app.success[0].value
    assert shown.app.success[0].value.endswith("Processes are not dumped (no criu on a).")


def test_a_job_is_taken_off_the_chosen_node(draw, source, job):
    shown = draw("nodes", node="node-1").click("move_migrate")
    assert source.client.done[0][4] == "node-1"
    assert "The job restarts with node-5 in the place of node-1." in shown.text


def test_a_job_gets_the_chosen_number_of_devices(draw, source, job):
    source.client.plan = {"devices": 2, "nodes": 1, "how": "turns", "step_ratio": 4.0, "dry_run": True}
    job["devices"] = 8
    shown = draw("nodes")
    assert shown.app.number_input(key="move_devices").value == 8
    shown.app.number_input(key="move_devices").set_value(2)
    shown.click("move_resize")
    assert "gpt would use 2 devices. Its ranks would take turns on them." in shown.text
    shown.app.text_input(key="move_reason").set_value("noon")
    shown.click("move")
    assert source.client.done[1] == ("move", "gpt", "resize", "noon", "", 2, False)


def test_a_pre_empted_job_can_only_be_resumed(draw, source, job):
    job |= {"state": "preempted", "move": {"what": "preempt", "node": "", "actor": "ann", "reason": "noon"}}
    shown = draw("nodes")
    assert "ann pre-empts it: noon." in shown.text
    keys = {button.key for button in shown.app.button}
    assert "move_resume" in keys
    assert not keys & {"move_preempt", "move_migrate"}


def test_a_pre_empted_job_goes_on_on_the_chosen_nodes(draw, source, job):
    job |= {"state": "preempted", "move": {"what": "preempt", "node": "", "actor": "ann", "reason": "noon"}}
    about = {"job": "gpt", "connected": True, "state": "standby"}
    source.answers["nodes"] = [{**about, "node": name} for name in ("c", "d", "e")]
    shown = draw("nodes")
    shown.app.multiselect(key="move_nodes").set_value(["c", "e"])
    shown.click("move_resume")
    assert "Then the job starts on c, e from the newest step" in shown.text
    shown.app.text_input(key="move_reason").set_value("noon")
    shown.click("move")
    assert source.client.done[1] == ("move", "gpt", "resume", "noon", "", ["c", "e"], False)


def test_a_refused_move_cannot_be_confirmed(draw, source, job):
    source.client.refusal = UsageError("no checkpoint")
    shown = draw("nodes").click("move_preempt")
    assert "The hub refuses: no checkpoint." in shown.text
    assert shown.app.button(key="move").disabled


def test_a_job_that_is_over_cannot_be_moved(draw, source, job):
    job["state"] = "finished"
    assert "Stop or move the job" not in draw("nodes").text
