"""What an agent says of its node's shared memory."""

from pathlib import Path

from pulsetrain.agent.shared_memory import shortage, too_small

SHM = Path("/dev/shm")


def test_what_docker_gives_by_itself_is_too_little():
    said = shortage(64 * 2**20, SHM)
    assert said.startswith("/dev/shm has 64 MB, too little for NCCL")
    assert "--shm-size" in said
    assert "\n" not in said


def test_enough_or_unknown_says_nothing(tmp_path):
    assert shortage(2**30, SHM) == shortage(0, SHM) == ""
    assert too_small(tmp_path / "none") == ""
