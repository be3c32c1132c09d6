"""The policy table: what is done about each kind of trouble, and how a site changes it."""

import pytest

from pulsetrain.analytics.machines import hardware, policies
from pulsetrain.analytics.machines.hardware_policy import Case, load
from pulsetrain.analytics.machines.signs import meanings
from pulsetrain.core.errors import ConfigError
from pulsetrain.records.kernel_log import KernelLine
from pulsetrain.recovery.response import Response

S = 1_000_000_000
NOTHING = {
    "",
    "IGNORE",
    "IGNORE_NO_ACTION_REQUIRED",
    "RESTART_APP",
    "CHECK_USER_APP_AND_GPU",
    "CONTACT_SUPPORT",
}


def xid_case(code, *, times=1, gap_s=60, text=""):
    policy = policies.load().xid[code]
    return Case(
        on="xid",
        code=code,
        action=policy.action,
        severity=policy.severity,
        text=text,
        times_ns=tuple(i * gap_s * S for i in range(times)),
    )


@pytest.mark.parametrize(
    ("code", "response"),
    [
        (79, "evict_now"), (48, "evict_at_step"), (63, "inform"), (64, "evict_at_step"), (94, "cordon"),
        (95, "evict_now"), (119, "evict_now"), (74, "evict_at_step"), (31, "inform"), (13, "inform"),
        (43, "inform"), (45, "inform"), (140, "evict_now"),
    ],
)  # fmt: skip
def test_each_xid_has_its_response(code, response):
    assert load().choose(xid_case(code)).response == response


def test_no_row_is_stricter_than_the_vendor_without_saying_why():
    """Against NVIDIA's catalogue. What asks for nothing, or for a new start, never evicts."""
    table = load()
    why = {row.name for row in table.rows if row.why}
    for code, policy in policies.load().xid.items():
        choice = table.choose(xid_case(code))
        if policy.nvidia_action in NOTHING and policy.action in NOTHING:
            assert not choice.response.evicts, code
            assert choice.response is Response.INFORM or choice.policy in why, code
        if policy.nvidia_action in ("RESTART_BM", "RESET_GPU"):
            assert choice.response.evicts, code


def test_every_fatal_sxid_evicts_and_no_other_does():
    for code, policy in policies.load().sxid.items():
        case = Case(on="sxid", code=code, action=policy.action, severity=policy.severity)
        assert load().choose(case).response.evicts == (policy.severity == "critical"), code


def test_every_name_and_code_of_the_table_is_one_that_is_reported():
    known = {"sign": {*meanings()}, "kernel": {rule.name for rule in policies.load().rules}}
    actions = {
        policy.action for table in (policies.load().xid, policies.load().sxid) for policy in table.values()
    }
    for row in load().rows:
        assert row.source
        assert row.names <= known.get(row.on, set()), row.name
        assert row.codes <= {*policies.load().xid}, row.name
        assert row.actions <= actions | {"CHECK_USER_APP_AND_GPU"}, row.name


def test_an_error_that_the_kernel_recovers_from_waits_for_a_step_boundary():
    reader = hardware.LineReader(policies.load())

    def after(severity):
        line = KernelLine(message=f"{{1}}[Hardware Error]: event severity: {severity}", ts_ns=0, wall=True)
        return load().choose(Case(on="kernel", name=reader.read(line).family)).response

    assert after("fatal") is Response.EVICT_NOW
    assert after("recoverable") is Response.EVICT_AT_STEP
    assert after("corrected") is Response.INFORM


def test_a_network_alert_waits_for_a_second_one_within_five_minutes():
    def flaps(*times_s):
        case = Case(on="sign", name="port_down", times_ns=tuple(t * S for t in times_s))
        return load().choose(case).response

    assert flaps(0) is Response.INFORM
    assert flaps(0, 299) is Response.EVICT_AT_STEP
    assert flaps(0, 301) is Response.INFORM
    assert flaps(0, 1000, 1100) is Response.EVICT_AT_STEP


def test_a_state_must_last():
    def throttled(held_s):
        return load().choose(Case(on="sign", name="throttle_hardware_thermal", held_s=held_s)).response

    assert [throttled(s) for s in (0, 5, 301)] == ["inform", "cordon", "evict_at_step"]


def test_three_contained_errors_in_a_day_are_a_failing_memory():
    assert load().choose(xid_case(94, times=2)).response is Response.CORDON
    assert load().choose(xid_case(94, times=3)).response is Response.EVICT_AT_STEP


def test_the_driver_s_own_recommendation_is_followed():
    def recommends(what, before="None"):
        text = f"GPU recovery action changed from 0x0 ({before}) to 0x1 ({what})"
        return load().choose(xid_case(154, text=text)).response

    assert recommends("GPU Reset Required") is Response.EVICT_NOW
    assert recommends("Drain and Reset") is Response.EVICT_AT_STEP
    assert recommends("None") is Response.INFORM
    assert recommends("None", before="GPU Reset Required") is Response.INFORM  # it was reset
    assert recommends("None", before="Drain and Reset") is Response.INFORM
    assert recommends("Drain and Reset", before="Node Reboot Required") is Response.EVICT_AT_STEP


def test_what_no_row_names_is_told_and_nothing_else():
    assert load().choose(Case(on="kernel", name="a rule of the site")).response is Response.INFORM


def site(tmp_path, text):
    (tmp_path / "hardware_policy.toml").write_text(text)
    return load(tmp_path)


def test_a_site_changes_a_row_and_adds_one(tmp_path):
    table = site(
        tmp_path,
        '[[policy]]\nname = "port_flaps"\ntimes = 3\n'
        '[[policy]]\nname = "ours"\non = "kernel"\nnames = ["ours"]\n'
        'response = "evict_now"\nsource = "site"\n',
    )
    flaps = Case(on="sign", name="port_down", times_ns=(0, S))
    assert table.choose(flaps).response is Response.INFORM
    assert table.choose(Case(on="kernel", name="ours")).response is Response.EVICT_NOW
    assert table.choose(xid_case(79)).response is Response.EVICT_NOW


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            '[[policy]]\nname = "port_flaps"\nresponse = "panic"',
            "allowed: inform, cordon",
        ),
        ('[[policy]]\nname = "new"\nresponse = "inform"\nsource = "s"', "row 'new' lacks on"),
        ('[[policy]]\nname = "port_flaps"\nafter = 3', "unknown key after; allowed: name, on"),
        ('[[policy]]\non = "xid"', "a row lacks name"),
        ('[[policy]]\nname = "port_flaps"\non = "gpu"', "on = 'gpu'; allowed: xid, sxid"),
        ('[[policy]]\nname = "port_flaps"\ntext = "("', "row 'port_flaps'"),
        ("[[policy", "hardware_policy.toml"),
    ],
)
def test_a_site_file_that_is_wrong_is_named_with_what_is_allowed(tmp_path, text, says):
    with pytest.raises(ConfigError) as caught:
        site(tmp_path, text)
    assert says in str(caught.value)
