"""Who may write into a ring: the rank, and no program that it starts."""

import os
import shlex
import subprocess
import sys

import pytest

from pulsetrain.collectors.layout import W_PID
from pulsetrain.collectors.rank.owner import is_of_another
from pulsetrain.collectors.rank.ring import RingWriter, create_ring
from pulsetrain.collectors.reading.ring_reader import RingReader

PROGRAM = "import sys, pulsetrain; sys.exit(0 if pulsetrain.init().active else 7)"
CHECKPOINT = (
    "import pulsetrain\n"
    "c = pulsetrain.Checkpointer({'position': 1})\n"
    "assert c.restore() is None\n"
    "c.save(3, durable=True).wait(40)"
)


@pytest.fixture
def fd(monkeypatch):
    fd = create_ring(64)
    monkeypatch.setenv("PULSETRAIN_RING_FD", str(fd))
    yield fd
    os.close(fd)


@pytest.fixture
def proc(tmp_path):
    for pid, state in ((11, "S"), (12, "Z")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) rank) {state} 1 1\n")
    return tmp_path


@pytest.mark.parametrize(
    ("pid", "refused"), [(0, False), ("own", False), (11, True), (12, False), (13, False)]
)
def test_a_ring_is_taken_unless_its_process_lives(fd, proc, pid, refused):
    RingWriter(fd).words[W_PID] = os.getpid() if pid == "own" else pid
    assert is_of_another(fd, proc) is refused


def test_what_is_no_ring_belongs_to_nobody(tmp_path):
    with (tmp_path / "file").open("w+") as file:
        assert not is_of_another(file.fileno())
    assert not is_of_another(987_654)


@pytest.mark.integration
def test_a_program_that_a_rank_starts_leaves_its_ring_alone(fd):
    writer = RingWriter(fd)
    assert os.waitstatus_to_exitcode(os.system(shlex.join([sys.executable, "-c", PROGRAM]))) == 7
    assert writer.words[W_PID] == os.getpid()


@pytest.mark.integration
def test_a_rank_behind_a_shell_is_watched_each_time_the_shell_starts_it(fd):
    program = shlex.join([sys.executable, "-c", PROGRAM])
    shell = f"{program} && {program} && true"
    assert subprocess.run(["sh", "-c", shell], pass_fds=[fd], check=False).returncode == 0
    assert RingReader(fd).status().pid not in (0, os.getpid())


@pytest.mark.integration
@pytest.mark.parametrize("inherits", [True, False])
def test_a_program_that_a_rank_starts_leaves_its_checkpoints_alone(fd, monkeypatch, inherits):
    from pulsetrain.checkpoint.memory.arena import ArenaReader, create_arena

    arena = create_arena()
    monkeypatch.setenv("PULSETRAIN_ARENA_FD", str(arena))
    monkeypatch.setenv("PULSETRAIN_RESTORE_STEP", "2")
    RingWriter(fd)
    passed = [fd, arena] if inherits else []
    done = subprocess.run([sys.executable, "-c", CHECKPOINT], pass_fds=passed, check=False)
    assert done.returncode == 0
    assert ArenaReader(arena).published() == []
    os.close(arena)
