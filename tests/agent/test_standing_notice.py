"""What a person is told whose node was given nothing to run."""

from pulsetrain.agent.standing_notice import AFTER_S, StandingNotice


def told(*looks, declared=False):
    """The lines after looks of (seconds, connected, launched)."""
    lines = []
    notice = StandingNotice("train", lines.append, declared=declared)
    for now_s, connected, launched in looks:
        notice.look(now_s, connected=connected, launched=launched)
    return lines


def test_a_node_that_has_nothing_to_run_is_told_once_and_what_to_do():
    [line] = told((0, True, False), (1, True, False), (AFTER_S, True, False), (3 * AFTER_S, True, False))
    assert "job 'train' has given this node nothing to run" in line
    assert "--job NAME" in line


def test_nothing_is_said_of_a_declared_standby_nor_of_a_node_that_was_launched():
    late = (AFTER_S, True, False)
    assert told((0, True, False), late, declared=True) == []
    assert told((0, True, False), (9, True, True), (10, True, False), (2 * AFTER_S, True, False)) == []


def test_time_without_the_hub_does_not_count():
    assert told((0, True, False), (30, False, False), (40, True, False), (AFTER_S, True, False)) == []
