"""The all-to-all of a machine's GPUs, between processes over gloo."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.diagnostics import all_to_all, local_group


@given(st.integers(2, 17))
def test_every_member_meets_every_other_one_once_and_nobody_two_at_a_time(size):
    rounds = all_to_all.pairings(size)
    met = [pair for pairs in rounds for pair in pairs]
    assert len(met) == len(set(met)) == size * (size - 1) // 2
    for pairs in rounds:
        members = [member for pair in pairs for member in pair]
        assert len(members) == len(set(members))


@pytest.mark.integration
def test_three_processes_exchange_and_a_wrong_byte_is_seen(monkeypatch):
    answers = local_group.run(all_to_all.run, size=3, timeout_s=60.0)
    assert all(a["ok"] and a["backend"] == "gloo" for a in answers)
    assert [sorted(a["rates"]) for a in answers] == [["1", "2"], ["0", "2"], ["0", "1"]]
    assert all(rate > 0 for a in answers for rate in (*a["rates"].values(), a["busbw_bytes_per_s"]))

    real = all_to_all._Exchange._mark

    def marked(self, sender, receiver):
        """As the memory of member 2's machine would be, if it changed what goes to member 0."""
        return real(self, sender, receiver) + (self._me.index == 2 and (sender, receiver) == (2, 0))

    monkeypatch.setattr(all_to_all._Exchange, "_mark", marked)
    answers = local_group.run(all_to_all.run, size=3, timeout_s=60.0)
    assert [a["error"] for a in answers] == ["wrong bytes from member 2", "", ""]


def test_without_a_store_the_check_has_failed_with_a_reason():
    report = all_to_all.run(
        index=0, size=2, store_address="127.0.0.1", store_port=1, prefix="t", timeout_s=0.2
    )
    assert report["ok"] is False
    assert report["error"]
