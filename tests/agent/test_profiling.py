"""What an agent does with ranks that are to be profiled."""

import base64

import pytest

from pulsetrain.agent import profiling
from pulsetrain.collectors.rank.profile import trace_path
from pulsetrain.protocol.messages import Profile


class Rank:
    """Answers after some looks, with a trace of `size` bytes."""

    def __init__(self, folder, rank, *, after=1, size=4, fails=False, code=None):
        self.rank, self.code = rank, code
        self.profile_prefix = str(folder / f"rank_{rank}.profile")
        self.after, self.size, self.fails = after, size, fails
        self.asked, self.before, self.called_off = None, 1, False

    def profile_number(self):
        return self.before

    def ask_for_profile(self, number, first_step, steps):
        self.asked = (number, first_step, steps)

    def call_off_profile(self):
        self.called_off = True

    def profiled(self):
        self.after -= 1
        if self.asked is None or self.after > 0:
            return 0
        with open(trace_path(self.profile_prefix, self.asked[0]), "wb") as file:
            file.write(bytes(self.size))
        return -self.asked[0] if self.fails else self.asked[0]


def run(*ranks, chosen=()):
    time = iter(range(1000))
    command = Profile(id=1, first_step=9, steps=3, timeout_s=20.0, ranks=chosen)
    return profiling.run(command, ranks, monotonic=lambda: float(next(time)), sleep=lambda seconds: None)


def test_the_chosen_ranks_are_asked_for_the_same_steps_and_their_traces_are_sent(tmp_path):
    ranks = [Rank(tmp_path, 0), Rank(tmp_path, 1, after=5), Rank(tmp_path, 2)]
    answer = run(*ranks, chosen=(0, 1))
    assert [rank.asked for rank in ranks] == [(2, 9, 3), (2, 9, 3), None]
    assert answer == {"profiles": dict.fromkeys("01", base64.b64encode(bytes(4)).decode()), "failed": {}}
    assert not list(tmp_path.glob("*-2.json.gz"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fails": True}, "the script runs its own"),
        ({"after": 900}, "did not get to step 12 in 20 s"),
        ({"after": 900, "code": 1}, "it has ended"),
        ({"size": profiling.MOST_BYTES + 1}, "too large to send"),
    ],
)
def test_a_rank_without_a_trace_says_why(tmp_path, changes, words):
    answer = run(Rank(tmp_path, 0, **changes), Rank(tmp_path, 1))
    assert words in answer["failed"]["0"]
    assert list(answer["profiles"]) == ["1"]


def test_a_rank_that_has_not_answered_in_time_is_told_to_end_its_profile(tmp_path):
    slow, ended, quick = Rank(tmp_path, 0, after=900), Rank(tmp_path, 1, after=900, code=1), Rank(tmp_path, 2)
    run(slow, ended, quick)
    assert [rank.called_off for rank in (slow, ended, quick)] == [True, False, False]
