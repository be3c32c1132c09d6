"""Log files of a folder, compared with each other."""

from __future__ import annotations

import weakref

import pytest

from pulsetrain.analytics.machines.log_files import read_folder
from pulsetrain.core.errors import UsageError


def test_a_folder_of_logs_is_read(tmp_path):
    for rank in range(4):
        text = "".join(f"step {s} done\n" for s in range(9))
        (tmp_path / f"stderr_rank_{rank}.log").write_text(text + ("KeyError: 'x'\n" if rank == 2 else ""))
    answer = read_folder(tmp_path)
    assert [f["subject"] for f in answer["files"]] == ["0", "1", "2", "3"]
    assert answer["files"][2]["blame"]["reasons"] == ["user_exception"]
    assert [(f["subject_type"], f["subject"]) for f in answer["findings"]] == [("rank", "2")]
    with pytest.raises(UsageError, match="No such file"):
        read_folder(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no file"):
        read_folder(tmp_path / "empty")


def test_files_that_name_no_rank_are_nodes_and_one_file_is_read_alone(tmp_path):
    for name in ("alpha", "beta", "gamma", "delta"):
        text = "step done\n" * 9
        (tmp_path / f"{name}.log").write_text(text + ("KeyError: 'x'\n" if name == "beta" else ""))
    answer = read_folder(tmp_path)
    assert [(f["subject_type"], f["subject"]) for f in answer["findings"]] == [("node", "beta")]
    alone = read_folder(tmp_path / "beta.log")
    assert [(f["subject"], f["lines"]) for f in alone["files"]] == [("beta", 10)]
    assert alone["findings"] == []


@pytest.mark.parametrize(
    ("name", "subject"),
    [
        ("rank_12.log", "12"),
        ("stderr-rank3.txt", "3"),
        ("node-5_rank-2.log", "2"),
        ("out_7.log", "7"),
        ("out.3", "3"),
        ("job.err.11", "11"),
        ("stdout-4.txt", "4"),
        ("6.log", "6"),
        ("a1b.log", "a1b"),
        ("node-3.log", "node-3"),
        ("gpu-a-17.out", "gpu-a-17"),
        ("10.0.0.7", "10.0.0.7"),
        ("layout-3.txt", "layout-3"),
    ],
)
def test_the_rank_of_a_file_is_in_its_name(tmp_path, name, subject):
    (tmp_path / name).write_text("hello\n")
    (file,) = read_folder(tmp_path)["files"]
    assert file["subject"] == subject


def test_the_lines_of_one_file_are_in_memory_at_a_time(tmp_path, monkeypatch):
    alive, most = weakref.WeakSet(), []

    class Text(str):
        """A line that can be counted."""

    def texts(path):
        lines = [Text(f"{path.name}: step {number} done") for number in range(100)]
        alive.update(lines)
        most.append(len(alive))
        return lines

    monkeypatch.setattr("pulsetrain.analytics.machines.log_files._texts", texts)
    for rank in range(5):
        (tmp_path / f"rank_{rank}.log").touch()
    assert [file["lines"] for file in read_folder(tmp_path)["files"]] == [100] * 5
    assert max(most) <= 201
