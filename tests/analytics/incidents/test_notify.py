"""Notifications: what each channel is sent, and that nothing is lost when a channel is away."""

from __future__ import annotations

import http.server
import json
import socket
import subprocess
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from shutil import which

import httpx
import pytest
from structlog.testing import capture_logs

from pulsetrain.analytics.incidents.alert_state import AlertConfig
from pulsetrain.analytics.incidents.alerts import AlertBook
from pulsetrain.analytics.incidents.notify import Channel, channels, deliver, forgetful
from pulsetrain.analytics.verdict import Failed, Finding
from pulsetrain.core.errors import ConfigError, Unavailable

S = 1_000_000_000
T0 = time.time_ns() // S * S - 1000 * S


def finding(subject="3", *, at=T0, kind="hang", severity="critical", summary=""):
    return Finding(
        ts_ns=at,
        job="gpt",
        attempt=0,
        kind=kind,
        subject_type="rank",
        subject=subject,
        severity=severity,
        confidence=0.9,
        summary=summary or f"rank {subject} hangs\nin all_reduce",
        evidence={"node": "a"},
    )


def book(path, *names):
    return AlertBook(path / "alerts.db", AlertConfig(channels=names, retry_s=5))


@contextmanager
def server(status=200, answer=""):
    """A local HTTP server that keeps what it is posted; `statuses` is what it answers next."""
    posted = []
    statuses = [status]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            length = int(self.headers["Content-Length"])
            posted.append((self.path, dict(self.headers), json.loads(self.rfile.read(length))))
            self.send_response(statuses[0])
            self.end_headers()
            self.wfile.write(answer.replace("PATH", self.path).encode())

        def log_message(self, *args):
            pass

    made = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{made.server_port}", posted, statuses
    finally:
        made.shutdown()
        thread.join()
        made.server_close()


class Fake:
    """A channel that takes or refuses."""

    def __init__(self, refuses=0):
        self.refuses, self.taken = refuses, []

    def send(self, notification):
        if self.refuses:
            self.refuses -= 1
            raise Unavailable("away")
        self.taken.append(notification)


def test_a_webhook_gets_all_alerts_of_the_notification(tmp_path):
    with server() as (url, posted, _):
        known = channels({"hook": {"kind": "webhook", "url": f"{url}/hook", "token": "secret"}})
        alerts = book(tmp_path, "hook")
        alerts.observe([finding("1"), finding("2")], T0)
        assert deliver(alerts, known, T0 + 2 * S) == 1
        ((path, headers, sent),) = posted
    assert (path, headers["Authorization"]) == ("/hook", "Bearer secret")
    assert (sent["status"], sent["group"]) == ("firing", {"job": "gpt", "kind": "hang"})
    assert [a["subject"] for a in sent["alerts"]] == ["1", "2"]
    assert sent["title"].startswith("critical [gpt] hang")


def test_slack_gets_text(tmp_path):
    with server() as (url, posted, _):
        known = channels({"s": {"kind": "slack", "url": url, "dashboard": "http://dash"}})
        alerts = book(tmp_path, "s")
        alerts.observe([finding()], T0)
        deliver(alerts, known, T0 + 2 * S)
        ((_, _, sent),) = posted
    assert set(sent) == {"text"}
    assert "rank 3 hangs" in sent["text"]
    assert "http://dash" in sent["text"]


def test_slack_gets_no_markup_from_what_a_rank_prints(tmp_path):
    printed = "<!channel> see <http://evil.example|here> & wait"
    with server() as (url, posted, _):
        alerts = book(tmp_path, "s")
        alerts.observe([finding(summary=printed)], T0)
        deliver(alerts, channels({"s": {"kind": "slack", "url": url}}), T0 + 2 * S)
        ((_, _, sent),) = posted
    assert "<" not in sent["text"]
    assert "&lt;!channel&gt; see &lt;http://evil.example|here&gt; &amp; wait" in sent["text"]


@pytest.mark.parametrize(
    ("answer", "shown"), [("no_service", "no_service"), ("POST PATH: not found", "404"), ("", "404")]
)
def test_a_refusal_names_the_host_and_not_the_secret_part_of_the_address(tmp_path, answer, shown):
    with server(404, answer) as (url, _, _):
        host = url.removeprefix("http://")
        address = f"http://ann:pass-word@{host}/services/T0/hook-secret?key=query-secret"
        logged = failure(tmp_path, {"kind": "slack", "url": address})
    assert f"http://{host}: status 404" in logged
    assert shown in logged
    assert "secret" not in logged
    assert "pass-word" not in logged


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9/secret",
        "secret/path",
        "secret://host/secret",
        "http://[::1/secret",
        "http://host:99999999/secret",
        "http://ho\x01st/secret",
    ],
)
def test_an_address_that_cannot_be_used_is_not_logged(tmp_path, url):
    logged = failure(tmp_path, {"kind": "webhook", "url": url, "timeout_s": 1.0})
    assert "/secret" not in logged
    assert "secret/" not in logged


def test_what_breaks_a_channel_is_logged_without_its_password(tmp_path):
    class Broken:
        def send(self, notification):
            raise ValueError("cannot encode pass-word")

    alerts = book(tmp_path, "hook")
    alerts.observe([finding()], T0)
    with capture_logs() as logs:
        deliver(alerts, {"hook": Broken()}, T0 + 2 * S)
    assert [(line["channel"], line["error"]) for line in logs] == [("hook", "ValueError")]


def failure(folder, table):
    """What is logged where a channel does not take a notification."""
    alerts = book(folder, "hook")
    alerts.observe([finding()], T0)
    with capture_logs() as logs:
        deliver(alerts, channels({"hook": table}), T0 + 2 * S)
    assert logs
    return json.dumps(logs)


def test_what_a_channel_refuses_is_sent_again_later_and_once_it_took_it_never(tmp_path):
    with server(500) as (url, posted, statuses):
        known = channels({"hook": {"kind": "webhook", "url": url}})
        alerts = book(tmp_path, "hook")
        alerts.observe([finding()], T0)
        assert deliver(alerts, known, T0 + 2 * S) == 0
        assert deliver(alerts, known, T0 + 3 * S) == 0
        assert len(posted) == 1
        statuses[0] = 200
        assert deliver(alerts, known, T0 + 7 * S) == 1
        assert deliver(alerts, known, T0 + 100 * S) == 0
        assert len(posted) == 2


def test_a_server_that_is_not_there_is_away(tmp_path):
    known = channels({"hook": {"kind": "webhook", "url": "http://127.0.0.1:9", "timeout_s": 1.0}})
    alerts = book(tmp_path, "hook")
    alerts.observe([finding()], T0)
    assert deliver(alerts, known, T0 + 2 * S) == 0
    assert alerts.undelivered == 1


def test_one_dead_channel_does_not_hold_the_others(tmp_path):
    dead, alive = Fake(refuses=99), Fake()
    alerts = book(tmp_path, "dead", "alive")
    known: dict[str, Channel] = {"dead": dead, "alive": alive}
    alerts.observe([finding(kind=k) for k in ("hang", "crash", "nan")], T0)
    assert deliver(alerts, known, T0 + 2 * S) == 3
    assert dead.refuses == 98
    assert alerts.undelivered == 3


def test_a_notification_that_breaks_its_channel_holds_nobody_else_and_waits(tmp_path):
    class Broken:
        tried = 0

        def send(self, notification):
            Broken.tried += 1
            raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")

    alive = Fake()
    alerts = book(tmp_path, "broken", "alive")
    alerts.observe([finding()], T0)
    for second in range(2, 6):
        deliver(alerts, {"broken": Broken(), "alive": alive}, T0 + second * S)
    assert (len(alive.taken), Broken.tried, alerts.undelivered) == (1, 1, 1)


def test_a_hub_that_dies_after_it_wrote_the_outbox_still_sends(tmp_path):
    first = book(tmp_path, "c")
    first.observe([finding()], T0)
    assert len(first.tick(T0 + 2 * S)) == 1
    channel = Fake()
    second = book(tmp_path, "c")
    assert deliver(second, {"c": channel}, T0 + 3 * S) == 1
    assert channel.taken[0].alerts[0]["subject"] == "3"


def test_a_long_absence_waits_longer_and_longer_but_for_ever_tries(tmp_path):
    channel = Fake(refuses=8)
    alerts = AlertBook(tmp_path / "a.db", AlertConfig(channels=("c",), retry_s=5, resolve_after_s=1e6))
    alerts.observe([finding()], T0)
    now, tries = T0 + 2 * S, []
    while not channel.taken:
        before = channel.refuses
        deliver(alerts, {"c": channel}, now)
        if channel.refuses != before or channel.taken:
            tries.append((now - T0) // S)
        now += S
    gaps = [b - a for a, b in pairwise(tries)]
    assert gaps == [5, 10, 20, 40, 80, 160, 320, 600]


def outage(folder, *steps, up_at):
    """What a channel is sent that refuses everything until `up_at`. `steps` are findings by second."""
    channel = Fake(refuses=999)
    config = AlertConfig(channels=("c",), retry_s=5, resolve_after_s=30, group_interval_s=5)
    alerts = AlertBook(folder / "a.db", config)
    tries = []
    for second in range(2 * up_at):
        found = [each for at, each in steps if at == second]
        alerts.observe(found, T0 + second * S)
        if second >= up_at:
            channel.refuses = 0
        before = channel.refuses + len(channel.taken)
        deliver(alerts, {"c": channel}, T0 + second * S)
        if channel.refuses + len(channel.taken) != before and second < up_at:
            tries.append(second)
    return channel.taken, tries


def test_an_alert_that_is_over_before_its_channel_is_back_is_not_said_to_fire(tmp_path):
    taken, _ = outage(tmp_path, (0, finding()), up_at=90)
    assert [notification.status for notification in taken] == ["resolved"]


def test_the_end_of_an_alert_never_arrives_before_its_begin(tmp_path):
    still = [(second, finding("4", at=T0 + second * S)) for second in range(0, 180, 10)]
    taken, _ = outage(tmp_path, (0, finding("3")), *still, up_at=90)
    told = [(each.status, [row["subject"] for row in each.alerts]) for each in taken]
    assert told == [("firing", ["4"]), ("resolved", ["3"])]


def test_a_dead_channel_is_tried_once_for_all_its_notifications(tmp_path):
    kinds = ("hang", "crash", "nan", "straggler")
    many = [(second, finding(kind=kind, at=T0 + second * S)) for second in range(0, 80, 10) for kind in kinds]
    _, tries = outage(tmp_path, *many, up_at=80)
    assert [b - a for a, b in pairwise(tries)] == [5, 10, 20, 40]


def test_a_notification_that_a_server_refuses_holds_no_other_up(tmp_path):
    with server(400) as (url, posted, statuses):
        known = channels({"hook": {"kind": "webhook", "url": url}})
        alerts = book(tmp_path, "hook")
        alerts.observe([finding()], T0)
        for second in range(2, 400):
            deliver(alerts, known, T0 + second * S)
        refused = len(posted)
        assert refused > 5
        statuses[0] = 200
        alerts.observe([finding(kind="crash", at=T0 + 400 * S)], T0 + 400 * S)
        assert deliver(alerts, known, T0 + 402 * S) == 1
        assert posted[-1][2]["group"]["kind"] == "crash"


def test_what_can_never_be_sent_lets_later_ones_of_its_kind_pass_after_some_tries(tmp_path):
    class Picky(Fake):
        def send(self, notification):
            if len(notification.alerts) > 1:
                raise ValueError("too large")
            super().send(notification)

    picky = Picky()
    alerts = book(tmp_path, "c")
    alerts.observe([finding(subject=str(rank)) for rank in range(3)], T0)
    deliver(alerts, {"c": picky}, T0 + 2 * S)
    alerts.observe([finding(subject="7", at=T0 + 70 * S)], T0 + 70 * S)
    for second in range(70, 400):
        deliver(alerts, {"c": picky}, T0 + second * S)
    assert {notification.alerts[0]["subject"] for notification in picky.taken} == {"7"}


def test_a_channel_that_is_dead_for_weeks_holds_nobody_up(tmp_path):
    alive = Fake()
    alerts = book(tmp_path, "dead", "alive")
    alerts.observe([finding()], T0)
    known = {"dead": Fake(refuses=10**6), "alive": alive}
    at = T0
    for _ in range(1100):
        at += 601 * S
        deliver(alerts, known, at)
    alerts.observe([finding(kind="crash", at=at)], at)
    assert deliver(alerts, known, at + 2 * S) >= 1
    assert any(notification.group[1] == "crash" for notification in alive.taken)


def posted_ends(posted):
    """When each set of labels ends, as Alertmanager was told last, by severity."""
    return {a["labels"]["severity"]: a["endsAt"] for _, _, alerts in posted for a in alerts}


def soon():
    """A second from now, in the form that Alertmanager is told."""
    return datetime.fromtimestamp(time.time() + 1, UTC).isoformat()


@pytest.mark.parametrize("severities", [("warning", "critical"), ("info", "warning", "critical")])
def test_alertmanager_is_told_the_end_of_every_severity(tmp_path, severities):
    with server() as (url, posted, _):
        known = channels({"am": {"kind": "alertmanager", "url": url}})
        alerts = book(tmp_path, "am")
        for turn, severity in enumerate(severities):
            at = T0 + 70 * turn * S
            alerts.observe([finding(at=at, severity=severity)], at)
            deliver(alerts, known, at + 2 * S)
            active = {s for s, ends in posted_ends(posted).items() if ends > soon()}
            assert active == {severity}
        for second in range(150, 550, 50):
            deliver(alerts, known, T0 + second * S)
    ends = posted_ends(posted)
    assert set(ends) == set(severities)
    assert max(ends.values()) < soon()


def test_alertmanager_is_told_the_end_of_an_alert_that_is_back_milder_before_its_end_was_sent(tmp_path):
    with server() as (url, posted, _):
        known = channels({"am": {"kind": "alertmanager", "url": url}})
        alerts = book(tmp_path, "am")
        alerts.observe([finding()], T0)
        deliver(alerts, known, T0 + 2 * S)
        alerts.resolve(alerts.list()[0]["id"], "ann", T0 + 3 * S)
        alerts.observe([finding(at=T0 + 5 * S, severity="warning")], T0 + 5 * S)
        deliver(alerts, known, T0 + 64 * S)
    ends = posted_ends(posted)
    assert ends["critical"] < soon() < ends["warning"]


HOURS = 3600 * S


def test_alertmanager_is_told_again_of_what_goes_on_for_a_day(tmp_path):
    with server() as (url, posted, _):
        known = channels({"am": {"kind": "alertmanager", "url": url}})
        config = AlertConfig(channels=("am",), forgetful=forgetful(known), resolve_after_s=1e6)
        alerts = AlertBook(tmp_path / "alerts.db", config)
        open_ = [finding(), Failed(analyzer="mfu", error="ValueError: x")]
        alerts.observe(open_, T0, job="j")
        deliver(alerts, known, T0 + 2 * S)
        hang = next(a["id"] for a in alerts.list() if a["kind"] == "hang")
        alerts.acknowledge(hang, "ann", "on it", T0 + 3 * S)
        for hour in range(1, 25):
            alerts.observe(open_, T0 + hour * HOURS, job="j")
            deliver(alerts, known, T0 + hour * HOURS)
    told = [a["labels"]["kind"] for _, _, sent in posted[2:] for a in sent]
    assert told.count("hang") == told.count("no_data") == 2  # after 8 and 16 hours


def test_alertmanager_is_given_no_end_before_the_start(tmp_path):
    ahead = time.time_ns() + 3600 * S  # the hub's clock stepped back
    with server() as (url, posted, _):
        known = channels({"am": {"kind": "alertmanager", "url": url}})
        alerts = book(tmp_path, "am")
        alerts.observe([finding(at=ahead)], ahead)
        deliver(alerts, known, ahead + 2 * S)
        alerts.resolve(alerts.list()[0]["id"], "ann", ahead + 70 * S)
        deliver(alerts, known, ahead + 72 * S)
    assert len(posted) == 2
    assert all(a["startsAt"] <= a["endsAt"] for _, _, told in posted for a in told)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"x": {"kind": "pigeon", "url": "u"}}, "notify.x.kind = 'pigeon'; allowed: alertmanager, slack"),
        ({"x": {"kind": "slack"}}, "notify.x.url"),
        ({"x": {"url": "u"}}, "notify.x.kind: missing; allowed: alertmanager, slack"),
        ({"x": {"kind": "slack", "url": "u", "colour": 1}}, "notify.x"),
        ({"x": {"kind": "smtp", "url": "u:25"}}, "recipients"),
    ],
)
def test_a_wrong_table_is_one_clear_line(table, message):
    with pytest.raises(ConfigError, match=message):
        channels(table)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.integration
def test_mail_arrives_at_a_real_server(tmp_path):
    from aiosmtpd.controller import Controller

    got = []

    class Inbox:
        async def handle_DATA(self, server, session, envelope):
            got.append((envelope.mail_from, envelope.rcpt_tos, envelope.content.decode()))
            return "250 OK"

    port = free_port()
    controller = Controller(Inbox(), hostname="127.0.0.1", port=port, ready_timeout=60)
    controller.start()
    try:
        known = channels(
            {
                "mail": {
                    "kind": "smtp",
                    "url": f"127.0.0.1:{port}",
                    "sender": "hub@example.org",
                    "recipients": "a@example.org, b@example.org",
                }
            }
        )
        alerts = book(tmp_path, "mail")
        alerts.observe([finding()], T0)
        assert deliver(alerts, known, T0 + 2 * S) == 1
    finally:
        controller.stop()
    ((sender, recipients, text),) = got
    assert (sender, recipients) == ("hub@example.org", ["a@example.org", "b@example.org"])
    assert "Subject: critical [gpt] hang: rank 3 hangs in all_reduce" in text


def ready(url):
    try:
        return httpx.get(f"{url}/-/ready", timeout=20).status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def alertmanager(folder):
    """The real one, on ports of its own."""
    port = free_port()
    config = folder / "alertmanager.yml"
    config.write_text("route: {receiver: none}\nreceivers: [{name: none}]\n")
    process = subprocess.Popen(
        [
            "prometheus-alertmanager",
            f"--config.file={config}",
            f"--storage.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while not ready(url):
            assert time.monotonic() < deadline, "Alertmanager does not start"
            time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.integration
@pytest.mark.skipif(which("prometheus-alertmanager") is None, reason="no prometheus-alertmanager here")
def test_the_real_alertmanager_takes_begins_and_ends(tmp_path):
    with alertmanager(tmp_path) as url:
        known = channels({"am": {"kind": "alertmanager", "url": url, "dashboard": "http://dash"}})
        alerts = book(tmp_path, "am")
        alerts.observe([finding("1"), finding("2")], T0)
        assert deliver(alerts, known, T0 + 2 * S) == 1
        active = httpx.get(f"{url}/api/v2/alerts", timeout=20).json()
        labels = sorted((a["labels"]["alertname"], a["labels"]["subject"]) for a in active)
        assert labels == [("pulsetrain_hang", "1"), ("pulsetrain_hang", "2")]
        assert {a["status"]["state"] for a in active} <= {"active", "unprocessed"}
        for alert in alerts.list():
            alerts.resolve(alert["id"], "ann", T0 + 3 * S)
        ended = T0 + 63 * S
        assert deliver(alerts, known, ended) == 1
        deadline = time.monotonic() + 60
        while httpx.get(f"{url}/api/v2/alerts", timeout=20).json() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert httpx.get(f"{url}/api/v2/alerts", timeout=20).json() == []
