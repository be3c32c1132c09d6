"""Tables of codes and rules: complete, with a source each, and a site's own rows over ours."""

from __future__ import annotations

import pytest

from pulsetrain.analytics.machines.hardware import read
from pulsetrain.analytics.machines.policies import XidPolicy, load
from pulsetrain.core.errors import ConfigError
from tests.analytics.machines.kernel_lines import log, reported, xid


def test_the_published_codes_of_switches_are_all_there():
    codes = load().sxid
    assert len(codes) == 93
    assert {10003, *range(23001, 23018), 12020, 22003, 22011} <= {
        c for c, p in codes.items() if p.severity == "critical"
    }


def test_every_action_of_a_table_has_a_text_and_every_row_a_source():
    tables = load()
    for policy in (*tables.xid.values(), *tables.sxid.values()):
        assert policy.action in tables.actions, policy.code
        assert tables.text(policy.action, gpu="g", node="n")
        assert policy.source


def test_a_site_has_the_last_word(tmp_path):
    (tmp_path / "xid.csv").write_text(
        "code,name,severity,nvidia_action,source\n94,ours,info,IGNORE,our experience\n"
    )
    (tmp_path / "kernel_rules.toml").write_text(
        "[[rule]]\nname = 'ours'\nkind = 'host_fault'\nseverity = 'warning'\npattern = 'flux \\d'\n"
        "summary = 's'\naction = 'a'\nsample = 'flux 1'\nsource = 'us'\n"
    )
    policies = load(tmp_path)
    assert reported(read(log(xid(94), "flux 7"), policies=policies)) == {
        (94, "PCI:0000:9b:00", "info"),
        ("ours", "node", "warning"),
    }
    (tmp_path / "xid.csv").write_text("code,name,severity,source\n94,ours,loud,x\n")
    with pytest.raises(ConfigError, match="loud"):
        load(tmp_path)


RULE = {
    "name": "ours",
    "kind": "host_fault",
    "severity": "info",
    "pattern": "flux",
    "summary": "s",
    "action": "a",
    "sample": "flux",
    "source": "us",
}


def rules_file(folder, **changes):
    row = {key: value for key, value in (RULE | changes).items() if value is not None}
    lines = [f"{key} = {value!r}" for key, value in row.items()]
    (folder / "kernel_rules.toml").write_text("[[rule]]\n" + "\n".join(lines))
    return folder


def test_a_sites_rule_replaces_ours_of_the_same_name(tmp_path):
    ours = load().rules[0].name
    loaded = load(rules_file(tmp_path, name=ours)).rules
    assert len(loaded) == len(load().rules)
    assert loaded[0].source == "us"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pattern": None}, "lacks pattern"),
        ({"pattern": "("}, "kernel_rules.toml"),
        ({"severity": "loud"}, "allowed: info, warning, critical"),
        ({"colour": "red"}, "unknown key colour"),
    ],
)
def test_a_sites_rule_that_is_not_as_documented_is_named(tmp_path, changes, words):
    with pytest.raises(ConfigError, match=words):
        load(rules_file(tmp_path, **changes))


def test_a_code_without_a_number_names_its_file(tmp_path):
    (tmp_path / "sxid.csv").write_text("code,name,severity,source\nmany,x,info,us\n")
    with pytest.raises(ConfigError, match=r"sxid\.csv"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("nvidia", "gpud", "action", "disputed"),
    [
        ("RESET", "REBOOT", "RESET", False),
        ("", "REBOOT", "REBOOT", True),
        ("IGNORE", "REBOOT", "IGNORE", True),
        ("RESET", "", "RESET", False),
    ],
)
def test_nvidias_action_comes_first_and_a_dispute_stays_visible(nvidia, gpud, action, disputed):
    policy = XidPolicy(code=1, name="x", severity="info", nvidia_action=nvidia, gpud_action=gpud)
    assert (policy.action, policy.disputed) == (action, disputed)
