"""The file of alerts: damage, newer versions, transactions, history and the outbox."""

from __future__ import annotations

import sqlite3

import pytest

from pulsetrain.analytics.incidents.alert_state import AlertConfig
from pulsetrain.analytics.incidents.alert_store import AlertStore, Change, open_store
from pulsetrain.analytics.incidents.alerts import AlertBook
from pulsetrain.analytics.incidents.muting import new_silence
from pulsetrain.analytics.incidents.notifications import Batch
from pulsetrain.core.errors import Unavailable
from tests.analytics.incidents.findings import T0, S, alert, finding


@pytest.fixture
def path(tmp_path):
    return tmp_path / "alerts.db"


@pytest.fixture
def store(path):
    opened = AlertStore(path)
    yield opened
    opened.close()


def states(book):
    return {(a["kind"], a["subject"]): a["state"] for a in book.list()}


def test_what_a_transaction_saved_is_there_after_a_restart(store, path):
    kept = alert(evidence={"node": "a", "ranks": [1, 2]})
    silence = new_silence({"kind": "hang"}, author="ann", comment="", now_ns=T0, expires_ns=T0 + S)
    with store.transaction():
        store.save(kept)
        store.save(silence)
    store.close()
    again = AlertStore(path)
    assert again.alerts() == {kept.id: kept}
    assert again.silences() == {silence.id: silence}
    again.close()


def test_a_transaction_that_fails_changes_nothing(store):
    def save_and_fail():
        with store.transaction():
            store.save(alert())
            store.enqueue("pager", Batch(group=("j", "hang"), status="firing", alerts=(alert(),)))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        save_and_fail()
    assert store.alerts() == {}
    assert store.undelivered() == 0


def test_an_alert_is_replaced_and_deleted_while_its_history_stays(store):
    line = Change(ts_ns=T0, state="firing", actor="", note="")
    store.save(alert(), line)
    store.save(alert(count=2), {**line, "ts_ns": T0 + S, "state": "resolved", "actor": "ann"})
    (kept,) = store.alerts().values()
    assert kept.count == 2
    store.delete_alert(kept.id)
    assert store.alerts() == {}
    assert [(c["ts_ns"], c["state"], c["actor"]) for c in store.history(kept.id)] == [
        (T0, "firing", ""),
        (T0 + S, "resolved", "ann"),
    ]


def test_a_notification_waits_in_the_outbox_until_it_is_removed(store):
    batch = Batch(group=("j", "hang"), status="firing", alerts=(alert(),))
    store.enqueue("pager", batch)
    store.enqueue("mail", batch)
    first, second = store.pending(T0)
    assert (first.channel, first.group, first.status) == ("pager", ("j", "hang"), "firing")
    assert first.alerts == (alert().row(),)
    store.postpone(first.id, T0 + 5 * S)
    assert store.pending(T0 + S) == [second]
    assert [(n.id, n.attempts) for n in store.pending(T0 + 5 * S)] == [(second.id, 0), (first.id, 1)]
    store.remove(second.id)
    assert store.undelivered() == 1
    assert (store.attempts(first.id), store.attempts(second.id)) == (("pager", 1), None)


def test_a_file_of_a_newer_version_opens(tmp_path):
    first = AlertBook(tmp_path / "alerts.db")
    first.observe([finding()], T0)
    first.close()
    with sqlite3.connect(tmp_path / "alerts.db") as db:
        db.execute("UPDATE alerts SET body = json_set(body, '$.of_the_future', 1)")
    second = AlertBook(tmp_path / "alerts.db")
    assert states(second) == {("hang", "3"): "firing"}
    second.close()


@pytest.mark.parametrize("damage", ["no database", "a torn page", "a row that says nothing"])
def test_a_damaged_file_is_renamed_and_a_new_one_begun(tmp_path, damage):
    path = tmp_path / "alerts.db"
    book = AlertBook(path)
    book.observe([finding(subject=str(rank)) for rank in range(200)], T0)
    book.close()
    if damage == "no database":
        path.write_bytes(b"not a database" * 100)
    elif damage == "a torn page":
        raw = bytearray(path.read_bytes())
        raw[4096:8192] = bytes(4096)
        path.write_bytes(raw)
    else:
        with sqlite3.connect(path) as db:
            db.execute("UPDATE alerts SET body = '[]'")
    damaged = path.read_bytes()
    again = AlertBook(path)
    again.observe([finding(subject="7")], T0)
    assert [a["subject"] for a in again.list()] == ["7"]
    again.close()
    (aside,) = tmp_path.glob("alerts.db.damaged-*[0-9]")
    assert aside.read_bytes() == damaged


def test_a_file_that_cannot_be_opened_is_one_line(tmp_path):
    with pytest.raises(Unavailable, match=r"alerts .*/missing/alerts\.db: unable to open database file"):
        AlertBook(tmp_path / "missing" / "alerts.db")


def test_a_healthy_file_is_opened_as_it_is(path):
    with sqlite3.connect(path):
        pass
    open_store(path).close()
    assert [p.name for p in path.parent.glob("alerts.db*")] == ["alerts.db"]


def test_a_config_is_no_part_of_the_file(path):
    book = AlertBook(path, AlertConfig(resolve_after_s=10))
    book.observe([finding()], T0)
    book.close()
    later = AlertBook(path, AlertConfig(resolve_after_s=1000))
    later.tick(T0 + 100 * S)
    assert states(later) == {("hang", "3"): "firing"}
    later.close()
