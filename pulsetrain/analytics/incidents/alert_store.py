"""Alerts, silences, their history and the outbox of notifications in one SQLite file."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sqlite3
import time
from pathlib import Path
from typing import TypedDict

import structlog

from pulsetrain.analytics.incidents.alert_state import Alert
from pulsetrain.analytics.incidents.muting import Silence
from pulsetrain.analytics.incidents.notifications import Batch, Group, Notification, rows
from pulsetrain.core.errors import Unavailable
from pulsetrain.core.json import JsonObject

log = structlog.get_logger()

MOST_WAITED_FOR = 5  # failures of one notification, while later ones of its group wait for it
_DAMAGE = (sqlite3.DatabaseError, ValueError, TypeError, AttributeError)  # of the file, or of a row in it
_TABLES = """
CREATE TABLE IF NOT EXISTS alerts (id TEXT PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS silences (id TEXT PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS history (ts_ns INTEGER, id TEXT, state TEXT, actor TEXT, note TEXT);
CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, channel TEXT, body TEXT,
                                   attempts INTEGER DEFAULT 0, next_ns INTEGER DEFAULT 0);
CREATE TABLE IF NOT EXISTS pauses (channel TEXT PRIMARY KEY, failures INTEGER, next_ns INTEGER);
CREATE INDEX IF NOT EXISTS history_of ON history (id, ts_ns);
"""


class Change(TypedDict):
    """One line of the history of an alert or silence."""

    ts_ns: int
    state: str
    actor: str
    note: str


class AlertStore:
    """The file. Calls must not overlap. Changes are kept when the `transaction` that they are in ends."""

    def __init__(self, path: Path) -> None:
        """Open or create the file, and check that all rows can be read.

        Raises `Unavailable` where the file cannot be opened or written. Raises `sqlite3.DatabaseError`,
        `ValueError`, `TypeError` or `AttributeError` where it is damaged.
        """
        try:
            self._db = sqlite3.connect(path, check_same_thread=False)
            try:
                self._db.executescript(f"PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; {_TABLES}")
                self.alerts()
                self.silences()
            except BaseException:
                self._db.close()
                raise
        except sqlite3.OperationalError as error:
            raise Unavailable(f"alerts {path}: {error}") from error

    def close(self) -> None:
        """Close the file. All that was committed is kept without it too."""
        self._db.close()

    def transaction(self) -> sqlite3.Connection:
        """Return a context manager: all changes inside are kept, or none where it ends with an exception."""
        return self._db

    # -- alerts and silences --

    def alerts(self) -> dict[str, Alert]:
        """Return every alert by id."""
        bodies = self._db.execute("SELECT id, body FROM alerts")
        return {name: Alert(**_known_fields(Alert, body)) for name, body in bodies}

    def silences(self) -> dict[str, Silence]:
        """Return every silence by id, also those that expired."""
        bodies = self._db.execute("SELECT id, body FROM silences")
        return {name: Silence(**_known_fields(Silence, body)) for name, body in bodies}

    def save(self, item: Alert | Silence, change: Change | None = None) -> None:
        """Insert or replace an alert or a silence, and add `change` to its history."""
        table = "alerts" if isinstance(item, Alert) else "silences"
        body = json.dumps(dataclasses.asdict(item), default=str)
        self._db.execute(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", (item.id, body))
        if change is not None:
            values = (change["ts_ns"], item.id, change["state"], change["actor"], change["note"])
            self._db.execute("INSERT INTO history VALUES (?, ?, ?, ?, ?)", values)

    def delete_alert(self, alert: str) -> None:
        """Forget an alert. Its history stays."""
        self._db.execute("DELETE FROM alerts WHERE id = ?", (alert,))

    def history(self, name: str) -> list[Change]:
        """Return every change of an alert or silence, oldest first."""
        changes = self._db.execute(
            "SELECT ts_ns, state, actor, note FROM history WHERE id = ? ORDER BY rowid", (name,)
        )
        return [Change(ts_ns=ts, state=state, actor=who, note=note) for ts, state, who, note in changes]

    # -- outbox --

    def enqueue(self, channel: str, batch: Batch) -> None:
        """Add a notification to the outbox."""
        body = {"group": batch.group, "status": batch.status, "alerts": rows(batch.alerts)}
        values = (channel, json.dumps(body, default=str))
        self._db.execute("INSERT INTO outbox (channel, body) VALUES (?, ?)", values)

    def pending(self, now_ns: int) -> list[Notification]:
        """Return the notifications to deliver now. Those that failed least often come first, then the oldest.

        Of one channel and group only the oldest is offered, so that an end does not overtake its begin. One
        that failed `MOST_WAITED_FOR` times while its channel took others lets later ones pass.
        """
        paused = dict(self._db.execute("SELECT channel, next_ns FROM pauses"))  # those that failed last
        seen: set[tuple[str, Group]] = set()
        due = []
        entries = self._db.execute("SELECT id, channel, body, attempts, next_ns FROM outbox ORDER BY id")
        for number, channel, body, attempts, next_ns in entries:
            if paused.get(channel, 0) > now_ns:
                continue
            found = _notification(number, channel, body, attempts)
            if (channel, found.group) not in seen and next_ns <= now_ns:
                due.append(found)
            if attempts < MOST_WAITED_FOR or channel in paused:
                seen.add((channel, found.group))
        return sorted(due, key=lambda notification: (notification.attempts, notification.id))

    def failures(self, channel: str) -> int:
        """Return how often in a row a channel was unavailable."""
        row = self._db.execute("SELECT failures FROM pauses WHERE channel = ?", (channel,)).fetchone()
        return 0 if row is None else int(row[0])

    def pause(self, channel: str, next_ns: int) -> None:
        """Count that a channel was unavailable, and offer it nothing until `next_ns`."""
        values = (channel, self.failures(channel) + 1, next_ns)
        self._db.execute("INSERT OR REPLACE INTO pauses VALUES (?, ?, ?)", values)

    def end_pause(self, notification: int) -> None:
        """Note that the channel of a notification took it."""
        self._db.execute(
            "DELETE FROM pauses WHERE channel = (SELECT channel FROM outbox WHERE id = ?)", (notification,)
        )

    def attempts(self, notification: int) -> tuple[str, int] | None:
        """Return the channel and how often a delivery failed, or None where it is not in the outbox."""
        query = "SELECT channel, attempts FROM outbox WHERE id = ?"
        row = self._db.execute(query, (notification,)).fetchone()
        return None if row is None else (str(row[0]), int(row[1]))

    def postpone(self, notification: int, next_ns: int) -> None:
        """Count a failed delivery, and offer the notification again from `next_ns` on."""
        self._db.execute(
            "UPDATE outbox SET attempts = attempts + 1, next_ns = ? WHERE id = ?", (next_ns, notification)
        )

    def remove(self, notification: int) -> None:
        """Take a notification out of the outbox."""
        self._db.execute("DELETE FROM outbox WHERE id = ?", (notification,))

    def undelivered(self) -> int:
        """Return how many notifications are in the outbox."""
        return int(self._db.execute("SELECT count(*) FROM outbox").fetchone()[0])


def open_store(path: Path) -> AlertStore:
    """Open the file. A damaged file is renamed, and a new one begun. Raises `Unavailable`."""
    try:
        return AlertStore(path)
    except _DAMAGE as error:
        log.warning("alerts_damaged", path=str(path), error=str(error), kept_as=str(_rename_damaged(path)))
        return AlertStore(path)


def _rename_damaged(path: Path) -> Path:
    """Rename the file, and the files that SQLite keeps beside it. Return the new name of the file."""
    renamed = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
    for suffix in ("-wal", "-shm", ""):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(f"{renamed}{suffix}")
    return renamed


def _known_fields(kind: type[Alert | Silence], body: str) -> JsonObject:
    """Return the fields of `kind` in a stored body. A newer version may have written others too."""
    known = {field.name for field in dataclasses.fields(kind)}
    return {name: value for name, value in json.loads(body).items() if name in known}


def _notification(number: int, channel: str, body: str, attempts: int) -> Notification:
    content = json.loads(body)
    return Notification(
        id=number,
        channel=channel,
        group=tuple(content["group"]),
        status=content["status"],
        alerts=tuple(content["alerts"]),
        attempts=attempts,
    )
