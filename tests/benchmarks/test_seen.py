"""Who a sentence of the dashboard names, beside those who were planted."""

from __future__ import annotations

import pytest
from browsing.live_site import Planted
from browsing.seen import names_one, strangers

RANK = Planted(table={}, name="rank 17", ranks=(17,))
NODE = Planted(table={}, name="sim-00003", ranks=tuple(range(24, 32)))
LINK = Planted(table={}, name="link sim-00005/mlx5_0/1", ranks=tuple(range(40, 48)))


@pytest.mark.parametrize(
    ("text", "planted", "others"),
    [
        ("Rank 17 is 1.3 times slower than its cohort.", [RANK], []),
        ("rank 17 on sim-00002 loses most: forward", [RANK], []),
        ("rank 25 on sim-00003 loses most: forward", [RANK, NODE], []),
        ("The link sim-00005/mlx5_0/1 went down 4 times", [LINK], []),
        ("Rank 18 is stopped in forward", [RANK], ["rank 18"]),
        ("rank 17 on sim-00003", [RANK], ["sim-00003"]),
        ("rank 170 and rank 1 are slow", [RANK], ["rank 1", "rank 170"]),
        ("Training. 127 ranks wait.", [RANK], []),
    ],
)
def test_who_has_nothing_to_do_with_the_faults_is_a_stranger(text, planted, others):
    assert strangers(text, planted) == others


def test_a_sentence_names_one_of_those_at_fault():
    assert names_one("Rank 17 is slow", [NODE, RANK])
    assert names_one("sim-00003 is slow", [NODE, RANK])
    assert names_one("The link sim-00005/mlx5_0/1 flaps", [LINK])
    assert not names_one("Rank 170 is slow", [RANK])
    assert not names_one("Training at step 4", [RANK, NODE])
