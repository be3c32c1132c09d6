"""Findings on nodes that computed wrongly."""

from pulsetrain.hub.arithmetic_findings import found
from pulsetrain.recovery.arithmetic_suspicion import WrongArithmetic
from pulsetrain.recovery.transitions import Phase
from tests.recovery.builders import job_snapshot

WRONG = {"b": WrongArithmetic(reason="wrong products: 1 elements on core 3", at_ns=5)}


def test_a_node_that_computed_wrongly_is_a_finding_also_after_the_job():
    for phase in (Phase.RUNNING, Phase.FINISHED):
        (finding,) = found(job_snapshot(phase=phase, wrong_arithmetic=WRONG))
        assert (finding.kind, finding.subject, finding.severity) == ("wrong_arithmetic", "b", "critical")
        assert "core 3" in finding.summary
    assert found(job_snapshot()) == []
