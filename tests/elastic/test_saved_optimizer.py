"""A parameter without saved state is refused, or named where it may have had none."""

import pytest
from structlog.testing import capture_logs

from pulsetrain.core.errors import CheckpointError
from pulsetrain.elastic.saved_optimizer import SavedOptimizer


def test_parameters_that_may_have_lost_their_state_are_named():
    saved = SavedOptimizer(state={"a": {}}, unnamed=1)
    with capture_logs() as logs:
        saved.check_missing(["b"])
    (line,) = logs
    assert (line["log_level"], line["parameters"]) == ("warning", ["b"])


def test_more_parameters_without_state_than_were_saved_so_are_refused():
    with pytest.raises(CheckpointError, match="b: no state of an optimizer was saved for it"):
        SavedOptimizer(state={"a": {}}, unnamed=1).check_missing(["b", "c"])


@pytest.mark.parametrize(
    ("saved", "missing"), [(SavedOptimizer(), ["b"]), (SavedOptimizer(state={"a": {}}, unnamed=1), [])]
)
def test_nothing_is_said_where_there_was_no_state_or_nothing_is_missing(saved, missing):
    with capture_logs() as logs:
        saved.check_missing(missing)
    assert logs == []
