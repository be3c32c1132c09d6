"""A site's log rules: what is refused and how, which rule a line gets, and that time is bounded."""

import pytest

from pulsetrain.core.errors import ConfigError
from pulsetrain.records.site_rules import LineMatcher, SiteRule, read

GOOD = """
version = 1
[[rule]]
name = "nccl-timeout"
pattern = 'NCCL.*(timed out|timeout)'
severity = "critical"
kind = "network_timeout"
advice = "Look at the fabric manager."
[[rule]]
name = "noise"
pattern = "deprecated"
action = "mark"
sources = ["stderr"]
"""


def rules_in(tmp_path, text):
    path = tmp_path / "rules.toml"
    path.write_text(text)
    return read(path)


def test_rules_are_read_in_order_with_defaults(tmp_path):
    timeout, noise = rules_in(tmp_path, GOOD)
    assert (timeout.name, timeout.severity, timeout.action) == ("nccl-timeout", "critical", "inform")
    assert (noise.kind, noise.severity, noise.sources) == ("log_rule", "warning", ("stderr",))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[rule]]\nname = "a"\npattern = "(x"', r"rule 'a': pattern '\(x': no regular expression"),
        ('[[rule]]\nname = "a"\npattern = "(x)\\\\1"', "rule 'a'.*reference to a group"),
        ('[[rule]]\nname = "a"', "rule 'a': pattern is missing"),
        ('[[rule]]\npattern = "a"', "rule 1: name is missing"),
        ('[[rule]]\nname = "a"\npattern = "x"\nlevel = 3', "rule 'a': unknown key 'level'; allowed: name"),
        ('[[rule]]\nname = "a"\npattern = "x"\naction = "explode"', "action = 'explode': allowed"),
        ('[[rule]]\nname = "a"\npattern = "x"\nseverity = "bad"', "severity = 'bad'"),
        ('[[rule]]\nname = "a"\npattern = "x"\nkind = "hang"', "may stop a job"),
        ('[[rule]]\nname = "a"\npattern = 3', "pattern = 3: not a text"),
        ('[[rule]]\nname = "a"\npattern = "x"\nsources = ["syslog"]', "sources"),
        ('[[rule]]\nname = "a b"\npattern = "x"', "name = 'a b'"),
        ('rule = "x"', "no list of tables"),
        ('[rules]\na = 1', "unknown key 'rules'"),
        ('[[rule]]\nname = "a"\npattern = "x"\n' * 2, "'a' is there twice"),
        ("[[", "rules.toml"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_one_line_that_names_the_rule(tmp_path, text, words):
    with pytest.raises(ConfigError, match=words) as refused:
        rules_in(tmp_path, text)
    assert "\n" not in str(refused.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nosuch\.toml: No such file"):
        read(tmp_path / "nosuch.toml")


def test_a_line_gets_the_first_rule_of_the_file_that_is_for_its_source(tmp_path):
    match = LineMatcher(rules_in(tmp_path, GOOD)).match
    lines = [
        ("stderr", "NCCL op timed out, deprecated"),
        ("stderr", "deprecated"),
        ("kmsg", "deprecated"),
        ("agent", "x"),
    ]
    assert [rule and rule.name for rule in match(lines)] == ["nccl-timeout", "noise", None, None]


def test_lines_for_which_there_is_no_time_are_counted_and_get_no_rule():
    clock = iter(range(100))
    rule = SiteRule(name="a", pattern="abc")
    matcher = LineMatcher([rule], budget_s=5.5, monotonic_s=lambda: float(next(clock)))
    matched = matcher.match([("stderr", "abc")] * 9)
    told = matched.index(None)
    assert matched == [rule] * told + [None] * (9 - told)
    assert 0 < told < 9
    assert matcher.skipped_lines == 9 - told


def test_only_the_beginning_of_a_long_line_is_looked_at():
    matcher = LineMatcher([SiteRule(name="a", pattern="abc")])
    assert matcher.match([("stderr", "x" * 5000 + "abc")]) == [None]
