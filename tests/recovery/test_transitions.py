"""Laws of the transition table."""

from pulsetrain.recovery.transitions import FAULTS, TABLE, TERMINAL, Action, Event, Phase, step


def test_every_fault_of_a_launched_job_suspends_it():
    for phase in (Phase.STARTING, Phase.RUNNING):
        for fault in FAULTS:
            assert step(phase, fault).actions == (Action.SUSPEND,)


def test_a_job_that_has_ended_stays_ended():
    assert not [pair for pair in TABLE if pair[0] in TERMINAL]


def test_every_phase_but_the_end_can_be_left():
    assert {phase for phase, _ in TABLE} == set(Phase) - set(TERMINAL)


def lives():
    """Every transition of every life of a job: (were ranks launched, were nodes checked, transition)."""
    todo, seen = [(Phase.FORMING, False, True)], set()
    while todo:
        at = phase, launched, checked = todo.pop()
        if at in seen:
            continue
        seen.add(at)
        for event in Event:
            transition = step(phase, event)
            if transition is None:
                continue
            yield launched, checked, transition
            now = launched, checked
            for action in transition.actions:
                now = after(action, *now)
            todo.append((transition.phase, *now))


def after(action, launched, checked):
    """Whether ranks were launched and not suspended since, and whether nodes were checked since they were."""
    if action is Action.LAUNCH:
        return True, checked
    if action is Action.SUSPEND:
        return False, False
    return launched, checked or action is Action.CHECK


def test_ranks_are_never_launched_twice_without_a_suspension_between():
    for launched, checked, transition in lives():
        for action in transition.actions:
            assert action is not Action.LAUNCH or not launched
            launched, checked = after(action, launched, checked)


def test_nodes_are_checked_before_every_relaunch():
    for launched, checked, transition in lives():
        for action in transition.actions:
            assert action is not Action.LAUNCH or checked
            launched, checked = after(action, launched, checked)


def test_every_phase_is_reached():
    assert {transition.phase for _, _, transition in lives()} == set(Phase) - {Phase.FORMING}
