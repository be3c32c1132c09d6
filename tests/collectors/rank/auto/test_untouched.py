"""A script that knows nothing of us, in two real ranks whose rings are read from outside."""

from __future__ import annotations

import json
import os
import runpy
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from pulsetrain.collectors.rank.ring import create_ring
from pulsetrain.collectors.reading.ring_reader import RingReader

pytestmark = pytest.mark.integration
SCRIPT = Path(__file__).with_name("untouched_script.py")


class Rank:
    """One rank, started as the agent starts it: hooks first, then the script."""

    def __init__(self, rank: int, port: int, **environ: str) -> None:
        fd = create_ring()
        world = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            env={**os.environ, **world, "PULSETRAIN_RING_FD": str(fd), "OMP_NUM_THREADS": "1", **environ},
            pass_fds=[fd],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.reader = RingReader(fd)
        os.close(fd)

    def end(self) -> list[float]:
        """The losses that it printed."""
        out, _ = self.process.communicate(timeout=140)
        assert self.process.returncode == 0
        return [float(line.split()[1]) for line in out.splitlines()]


def run(**environ: str) -> tuple[list[Rank], list[list[float]]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [Rank(i, port, **environ) for i in range(2)]
    return ranks, [rank.end() for rank in ranks]


@pytest.fixture(scope="module")
def watched_run() -> tuple[list[Rank], list[list[float]]]:
    return run()


def test_steps_phases_losses_and_tokens_of_both_ranks(watched_run):
    ranks, printed = watched_run
    for rank, losses in zip(ranks, printed, strict=True):
        spans, steps = rank.reader.drain(final=True)
        assert steps["step"].tolist() == [0, 1, 2, 3]
        assert steps["loss"].tolist() == pytest.approx(losses, abs=2e-6)
        assert steps["tokens"].tolist() == [2 * 2 * 17] * 4
        names = rank.reader.names
        count = Counter(names[s["name"]] for s in spans if not names[s["parent"]])
        assert [count[n] for n in ("data", "forward", "backward", "optimizer")] == [9, 8, 8, 4]
        inside = {names[s["parent"]] for s in spans if names[s["name"]] == "all_reduce"}
        assert inside == {"backward"}
        assert json.loads(rank.reader.description())["steps"] == "inferred"
        assert rank.reader.status().errors == 0
        assert rank.reader.status().stack == ()


def test_turned_off_the_results_are_the_same_and_nothing_is_inferred(watched_run):
    ranks, printed = run(PULSETRAIN_AUTO="0")
    assert printed == watched_run[1]
    for rank in ranks:
        assert len(rank.reader.drain(final=True)[1]) == 0
        assert json.loads(rank.reader.description())["auto"] == "off"


def main() -> None:
    from pulsetrain.collectors.rank import bootstrap

    bootstrap.install()
    runpy.run_path(str(SCRIPT), run_name="__main__")


if __name__ == "__main__":
    main()
