"""What is known of a job's updates, and how a new hub reads it."""

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.core.errors import UsageError
from pulsetrain.protocol.messages import ProgramUpdate, Start, decode, encode
from pulsetrain.recovery.memory import RestartMemory, UpdateMemory
from pulsetrain.recovery.update_request import MOST_BYTES, UpdateRequest
from pulsetrain.recovery.updates import PendingUpdate, Trial, UpdateOutcome, Updates, row, shown

RESTARTS = RestartMemory(used=1, idle=0, unexplained=0, by_node_ns={}, failed_from=[], unrestorable=[])
texts = st.text(max_size=8)
programs = st.builds(
    ProgramUpdate,
    number=st.integers(0, 99),
    argv=st.lists(texts, max_size=3).map(tuple),
    environment=st.dictionaries(texts, texts, max_size=3),
)
pendings = st.builds(
    PendingUpdate,
    program=programs,
    reason=texts,
    actor=texts,
    asked_ns=st.integers(0, 10**19),
    until_ns=st.integers(0, 10**19),
)
trials = st.builds(
    Trial,
    update=pendings,
    restarts=st.just(RESTARTS),
    base_step=st.integers(-1, 99),
    launches=st.integers(0, 9),
    judged=st.integers(-1, 9),
    failures=st.lists(texts, max_size=2),
)
outcomes = st.builds(
    UpdateOutcome,
    number=st.integers(1, 9),
    end=st.sampled_from(["in_force", "rolled_back", "cancelled"]),
    why=texts,
    at_ns=st.integers(0, 10**19),
)
everything = st.builds(
    Updates,
    number=st.integers(0, 99),
    in_force=programs,
    before=st.none() | programs,
    pending=st.none() | pendings,
    trial=st.none() | trials,
    outcome=st.none() | outcomes,
    recalled=st.just(True),
)


def ask(**changes):
    return UpdateRequest(**{"what": "apply", "reason": "a fix", "actor": "ann"} | changes)


@given(everything)
def test_a_new_hub_knows_all_that_the_old_one_knew(known):
    text = json.dumps(asdict(known.kept()))
    assert Updates.of_memory(UpdateMemory(**json.loads(text))) == known


def test_nothing_that_is_shown_has_the_value_of_a_variable():
    updates = Updates()
    secret = ask(environment={"K": "hunter2"})
    waits = updates.ask(secret, 0, 9.0)
    told = [repr(secret), repr(updates), str(row(updates)), str(shown(waits.program))]
    updates.ended("in_force", waits, "", 1)
    updates.pending = None
    told += [repr(updates), str(row(updates))]
    assert not [text for text in told if "hunter2" in text]
    assert row(updates)["in_force"]["environment"] == ["K"]


@given(programs)
def test_a_launch_carries_the_program_to_the_agent(program):
    start = Start(
        id=1, job="j", attempt=0, node_rank=0, world=(), store_address="h", store_port=1, program=program
    )
    assert decode(encode(start)).program == program


def test_an_update_is_built_on_the_one_that_waits_and_else_on_what_is_in_force():
    updates = Updates()
    updates.ask(ask(argv=["b.py"], environment={"K": "1", "L": "1"}), 0, 100.0)
    waits = updates.ask(ask(environment={"K": "2"}, within_s=500.0), 10**9, 100.0)
    assert (waits.program.argv, waits.program.environment) == (("b.py",), {"K": "2", "L": "1"})
    assert (waits.program.number, waits.until_ns, waits.asked_ns) == (2, 100 * 10**9, 0)
    updates.ended("cancelled", waits, "no", 5)
    assert updates.ask(ask(argv=["c.py"]), 0, 100.0).program.environment == {}


def test_a_revert_brings_back_what_was_good_before_and_can_itself_be_reverted():
    updates = Updates()
    updates.ended("in_force", updates.ask(ask(argv=["b.py"], environment={"K": "1"}), 0, 9.0), "", 1)
    updates.pending = None
    back = updates.ask(ask(what="revert"), 2, 9.0)
    assert (back.program.number, back.program.argv, back.program.environment) == (2, (), {})
    updates.ended("in_force", back, "", 3)
    updates.pending = None
    assert updates.ask(ask(what="revert"), 4, 9.0).program.argv == ("b.py",)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"what": "restart"}, "apply, revert, cancel"),
        ({"what": "cancel", "within_s": 5.0}, "cancel takes no time"),
        ({"within_s": float("nan")}, "within_s"),
        ({"within_s": 1e9}, "0 to 2592000"),
        ({"argv": ["", "x"]}, "argument 0 is empty"),
        ({"argv": ["x"] * 1001}, "1001 arguments"),
        ({"environment": {"K": "x" * MOST_BYTES}}, f"allowed: {MOST_BYTES}"),
        ({"environment": {"MASTER_ADDR": "x"}}, "Pulsetrain sets it itself"),
        ({"environment": {"PULSETRAIN_RING_FD": "5"}}, "Pulsetrain sets it itself"),
        ({"environment": {"A=B": "5"}}, "letters, digits and _"),
    ],
)
def test_what_cannot_be_launched_is_refused(changes, words):
    with pytest.raises(UsageError, match=words):
        ask(**changes)
