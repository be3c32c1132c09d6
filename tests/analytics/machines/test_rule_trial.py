"""Rules tried on a log file."""

import pytest

from pulsetrain.analytics.machines.rule_trial import try_rules
from pulsetrain.core.errors import UsageError
from pulsetrain.records.site_rules import SiteRule

RULES = (SiteRule(name="b", pattern="b"), SiteRule(name="never", pattern="zzz", sources=("kmsg",)))


def test_each_rule_says_how_many_lines_and_which_was_the_first(tmp_path):
    log = tmp_path / "log"
    log.write_text("a\nb 1\nb 2\nzzz\n")
    answer = try_rules(RULES, log, source="stderr")
    assert (answer["lines"], answer["matched"]) == (4, 2)
    first, never = answer["rules"]
    assert (first["lines"], first["first"], first["line"]) == (2, 2, "b 1")
    assert (never["lines"], never["first"]) == (0, 0)
    assert try_rules(RULES, log, source="kmsg")["matched"] == 3


def test_a_log_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(UsageError, match="nosuch: No such file"):
        try_rules(RULES, tmp_path / "nosuch", source="stderr")
