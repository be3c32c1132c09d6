"""Laws of the transition table."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pulsetrain.recovery.transitions import FAULTS, TABLE, TERMINAL, Action, Event, Phase, step


def test_every_fault_of_a_launched_job_suspends_it():
    for phase in (Phase.STARTING, Phase.RUNNING):
        for fault in FAULTS:
            assert step(phase, fault).actions == (Action.SUSPEND,)


def test_a_job_that_has_ended_stays_ended():
    assert not [pair for pair in TABLE if pair[0] in TERMINAL]


def test_every_phase_but_the_end_can_be_left():
    assert {phase for phase, _ in TABLE} == set(Phase) - set(TERMINAL)


@given(st.lists(st.sampled_from(Event)))
def test_ranks_are_never_launched_twice_without_a_suspension_between(events):
    phase, launched = Phase.FORMING, False
    for event in events:
        transition = step(phase, event)
        if transition is None:
            continue
        phase = transition.phase
        for action in transition.actions:
            if action is Action.LAUNCH:
                assert not launched
                launched = True
            elif action is Action.SUSPEND:
                launched = False


class JobLife(RuleBasedStateMachine):
    """Any sequence of facts: nodes are checked before every relaunch, and nothing runs in a phase of rest."""

    def __init__(self):
        super().__init__()
        self.phase = Phase.FORMING
        self.ran_before = False
        self.checked = True

    @rule(event=st.sampled_from(Event))
    def happen(self, event):
        transition = step(self.phase, event)
        if transition is None:
            return
        for action in transition.actions:
            if action is Action.SUSPEND:
                self.checked = False
            elif action is Action.CHECK:
                self.checked = True
            elif action is Action.LAUNCH:
                assert self.checked
        self.phase = transition.phase

    @invariant()
    def a_known_phase(self):
        assert self.phase in Phase


TestJobLife = JobLife.TestCase
