"""Delivery of notifications to webhooks, Slack, mail and Alertmanager, each at least once.

`AlertBook` keeps a notification until its channel has taken it. After a crash of the hub a message may arrive
twice, but none is lost.
"""

from __future__ import annotations

import re
import smtplib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from typing import Protocol
from urllib.parse import unquote, urlsplit

import httpx
import structlog

from pulsetrain.analytics.incidents.alert_state import AlertRow
from pulsetrain.analytics.incidents.alerts import AlertBook
from pulsetrain.analytics.incidents.notifications import Notification
from pulsetrain.core.config import load
from pulsetrain.core.errors import ConfigError, PulsetrainError, Unavailable
from pulsetrain.core.json import JsonObject

log = structlog.get_logger()

_AWAY = (401, 403, 404, 408, 429)  # answers to any notification: a wrong token, a wrong address, too many
_SECRET = 4  # characters of a part of an address that is looked for in an answer


class _Refused(PulsetrainError):
    """The other side answers, and does not want this notification."""


class Channel(Protocol):
    """Something that takes notifications."""

    def send(self, notification: Notification) -> None:
        """Send a notification. Return when the other side has confirmed it.

        Raises `Unavailable` where it may take others no more than this one.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class ChannelConfig:
    """One table `[notify.NAME]` of the configuration file."""

    kind: str
    """`webhook`, `slack`, `smtp` or `alertmanager`."""
    url: str = ""
    """Where to post. The base URL for alertmanager, host:port for smtp."""
    token: str = ""
    """sent as a bearer token by webhook and alertmanager"""
    sender: str = "pulsetrain@localhost"
    """Sender of a mail."""
    recipients: str = ""
    """Recipients of a mail, separated by commas."""
    user: str = ""
    """login of the mail server, with `token` as password. Empty: none."""
    starttls: bool = False
    """ask the mail server for TLS"""
    dashboard: str = ""
    """address of the dashboard, for links"""
    timeout_s: float = 10.0
    """how long one delivery may take"""


def channels(configs: Mapping[str, JsonObject]) -> dict[str, Channel]:
    """Return channels by name, from the tables `[notify.NAME]` of the configuration file.

    Raises `ConfigError` for an unknown kind or key, and for a channel without an address.
    """
    made: dict[str, Channel] = {}
    for name, values in configs.items():
        if isinstance(values, Mapping) and "kind" not in values:
            raise ConfigError(f"notify.{name}.kind: missing; allowed: {', '.join(sorted(KINDS))}")
        config = load(ChannelConfig, f"notify.{name}", file={f"notify.{name}": values})
        if config.kind not in KINDS:
            raise ConfigError(f"notify.{name}.kind = {config.kind!r}; allowed: {', '.join(sorted(KINDS))}")
        if not config.url:
            raise ConfigError(f"notify.{name}.url: missing")
        made[name] = KINDS[config.kind](config)
    return made


def forgetful(known: Mapping[str, Channel]) -> tuple[str, ...]:
    """The channels whose receiver ends an alert that it is not told of again."""
    return tuple(name for name, channel in known.items() if isinstance(channel, Alertmanager))


def deliver(book: AlertBook, known: Mapping[str, Channel], now_ns: int) -> int:
    """Let time pass for the alerts, and send what is due. Return how many notifications were taken.

    A channel that is unavailable is not tried again in the same round, so that a dead server does not delay
    the others. A notification that its channel cannot send waits like one that was refused.
    """
    taken = 0
    unavailable: set[str] = set()
    for notification in book.tick(now_ns):
        channel = known.get(notification.channel)
        if channel is None:
            log.warning("channel_unknown", channel=notification.channel)
            book.failed(notification.id, now_ns, away=False)
            continue
        if notification.channel in unavailable:
            continue
        try:
            channel.send(notification)
        except Unavailable as error:
            unavailable.add(notification.channel)
            log.warning("notification_failed", channel=notification.channel, error=str(error))
            book.failed(notification.id, now_ns)
        except _Refused as error:
            log.warning("notification_refused", channel=notification.channel, error=str(error))
            book.failed(notification.id, now_ns, away=False)
        except Exception as error:  # noqa: BLE001 - what one channel cannot send must not stop the others
            # Its text may hold an address or a password.
            log.warning("notification_broken", channel=notification.channel, error=type(error).__name__)
            book.failed(notification.id, now_ns, away=False)
        else:
            book.delivered(notification.id)
            taken += 1
    return taken


def origin(url: str) -> str:
    """Return the scheme, host and port of an address. The rest of it may be a secret.

    >>> origin("https://user:password@hooks.example.org:8443/services/T0/B0?key=1")
    'https://hooks.example.org:8443'
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "an address that is malformed"
    if not parts.scheme or not host:
        return "an address without a scheme or host"
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + (f":{port}" if port else "")


def _without_secrets(answer: str, url: str, token: str) -> str:
    """Return what a server answered as the end of a message. "" where it repeats a part of the address."""
    parts = urlsplit(url)
    pieces = re.split(r"[/?&=:@;,]+", f"{parts.path}?{parts.query}?{parts.netloc.rpartition('@')[0]}")
    secrets = {piece for raw in (*pieces, token) for piece in (raw, unquote(raw)) if len(piece) >= _SECRET}
    said = " ".join(answer.split())
    known = any(secret.lower() in unquote(said).lower() for secret in secrets)
    return "" if known or not said else f": {said[:200]}"


def title(notification: Notification) -> str:
    """Return one line: state, job, the worst alert, and how many more there are."""
    alerts = notification.alerts
    order = {"critical": 0, "warning": 1, "info": 2}
    worst = min(alerts, key=lambda a: order.get(a["severity"], 3))
    more = f" and {len(alerts) - 1} more" if len(alerts) > 1 else ""
    job = f" [{notification.group[0]}]" if notification.group[0] else ""
    word = "resolved" if notification.status == "resolved" else str(worst["severity"])
    return f"{word}{job} {worst['kind']}: {worst['summary']}{more}"


def body(notification: Notification, dashboard: str = "") -> str:
    """Return all alerts, one a line, with the address of the dashboard."""
    lines = [
        f"- {a['severity']} {a['kind']} {a['subject_type']} {a['subject']}: {a['summary']} "
        f"(since {a['since']}, {a['count']}x, id {a['id']})"
        for a in notification.alerts
    ]
    return "\n".join([*lines, *([dashboard] if dashboard else [])])


class _HttpChannel:
    """A channel that posts JSON."""

    def __init__(self, config: ChannelConfig) -> None:
        self._config = config
        headers = {"Authorization": f"Bearer {config.token}"} if config.token else {}
        self._http = httpx.Client(timeout=config.timeout_s, headers=headers)

    def _post(self, url: str, value: object) -> None:
        try:
            response = self._http.post(url, json=value)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            why = f": {error}" if isinstance(error, httpx.NetworkError) else ""
            raise Unavailable(f"{origin(url)}: {type(error).__name__}{why}") from None
        if response.status_code >= 300:
            said = _without_secrets(response.text, url, self._config.token)
            text = f"{origin(url)}: status {response.status_code}{said}"
            if response.status_code in _AWAY or response.status_code >= 500:
                raise Unavailable(text)
            raise _Refused(text)


class Webhook(_HttpChannel):
    """Posts the notification as JSON: id, group, status, title, alerts."""

    def send(self, notification: Notification) -> None:
        self._post(
            self._config.url,
            {
                "version": 1,
                "id": notification.id,
                "group": {"job": notification.group[0], "kind": notification.group[1]},
                "status": notification.status,
                "title": title(notification),
                "alerts": list(notification.alerts),
                "dashboard": self._config.dashboard,
            },
        )


class Slack(_HttpChannel):
    """Posts to an incoming webhook of Slack, or of a service that takes its format."""

    def send(self, notification: Notification) -> None:
        text = f"*{title(notification)}*\n{body(notification, self._config.dashboard)}"
        short = _escaped(text)[:35_000]  # Slack cuts at 40,000 characters
        self._post(self._config.url, {"text": re.sub(r"&[a-z]{0,3}$", "", short)})


def _escaped(text: str) -> str:
    """Return `text` without Slack's markup: what a rank prints must not call a channel or name a link.

    >>> _escaped("<!channel> a && b")
    '&lt;!channel&gt; a &amp;&amp; b'
    """
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class Alertmanager(_HttpChannel):
    """Posts to the v2 API of Alertmanager, which has groups, silences and routes of its own.

    Alertmanager ends an alert that is not posted again. So an open alert gets an end a day ahead, and is
    posted again before that. To Alertmanager the same alert with another severity is another alert, so that
    one is ended.
    """

    ENDS_AFTER_S = 24 * 3600

    def send(self, notification: Notification) -> None:
        now = datetime.now(UTC)
        self._post(
            f"{self._config.url.rstrip('/')}/api/v2/alerts",
            [posted for alert in notification.alerts for posted in self._alerts(alert, now.timestamp())],
        )

    def _alerts(self, alert: AlertRow, now_s: float) -> Iterator[JsonObject]:
        """The alert as it is, and the ends of those of its earlier severities."""
        resolved_ns = alert["resolved_ns"]
        over_s = now_s if resolved_ns is None else min(resolved_ns / 1e9, now_s)
        yield self._alert(
            alert, alert["severity"], now_s + self.ENDS_AFTER_S if resolved_ns is None else over_s
        )
        for severity in alert.get("earlier_severities", ()):  # an older hub may have queued it without
            yield self._alert(alert, severity, over_s)

    def _alert(self, alert: AlertRow, severity: str, ends_s: float) -> JsonObject:
        return {
            "labels": {
                "alertname": f"pulsetrain_{alert['kind']}",
                "job": alert["job"],
                "kind": alert["kind"],
                "subject_type": alert["subject_type"],
                "subject": alert["subject"],
                "severity": severity,
                "fingerprint": alert["id"],
            },
            "annotations": {"summary": alert["summary"], "note": alert["note"]},
            "startsAt": _rfc3339(min(alert["since_ns"] / 1e9, ends_s)),  # it refuses an end before the start
            "endsAt": _rfc3339(ends_s),
            "generatorURL": self._config.dashboard,
        }


class Smtp:
    """Sends a mail."""

    def __init__(self, config: ChannelConfig) -> None:
        self._config = config
        if not config.recipients.strip(" ,"):
            raise ConfigError("notify: a channel of kind smtp needs recipients")

    def send(self, notification: Notification) -> None:
        config = self._config
        host, _, port = config.url.rpartition("@")[2].partition(":")
        message = EmailMessage()
        message["From"], message["To"] = config.sender, config.recipients
        message["Subject"] = " ".join(title(notification).split())[:200]
        message["X-Pulsetrain-Notification"] = str(notification.id)
        message.set_content(body(notification, config.dashboard))
        try:
            with smtplib.SMTP(host, int(port or 25), timeout=config.timeout_s) as server:
                if config.starttls:
                    server.starttls()
                if config.user:
                    server.login(config.user, config.token)
                server.send_message(message)
        except (OSError, smtplib.SMTPException) as error:
            raise Unavailable(f"mail server {host}: {error}") from error


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


KINDS: Mapping[str, Callable[[ChannelConfig], Channel]] = {
    "webhook": Webhook,
    "slack": Slack,
    "smtp": Smtp,
    "alertmanager": Alertmanager,
}
