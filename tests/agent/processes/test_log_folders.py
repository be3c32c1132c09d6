"""Runs that write into one folder, and what stays of each."""

from pulsetrain.agent.processes.log_folders import LogFolders


def printed(folders, attempt, ranks, text):
    """What ranks of an attempt print. Returns the folder."""
    folder = folders.folder(attempt, ranks)
    for rank in ranks:
        (folder / f"rank_{rank}.err").write_text(text)
    return folder


def test_the_files_of_an_earlier_run_stay(tmp_path):
    first, second = LogFolders(tmp_path), LogFolders(tmp_path)
    assert printed(first, 0, [0, 1], "boom") == tmp_path / "attempt_0"
    assert printed(second, 0, [0, 1], "well") == tmp_path / "attempt_0.1"
    assert (tmp_path / "attempt_0" / "rank_1.err").read_text() == "boom"
    assert printed(first, 1, [0, 1], "well") == tmp_path / "attempt_1"
    assert printed(LogFolders(tmp_path), 0, [0], "well") == tmp_path / "attempt_0.2"


def test_nodes_of_a_job_share_the_folder_of_an_attempt(tmp_path):
    nodes = LogFolders(tmp_path), LogFolders(tmp_path)
    assert printed(nodes[0], 0, [0, 1], "") == printed(nodes[1], 0, [2, 3], "")
    again = LogFolders(tmp_path).folder(0, [3, 4])
    assert again == tmp_path / "attempt_0.1"
    assert not (tmp_path / "attempt_0" / "rank_4.out").exists()


def test_an_attempt_that_is_launched_again_keeps_its_folder(tmp_path):
    folders = LogFolders(tmp_path)
    assert folders.folder(3, [0]) == folders.folder(3, [0]) == tmp_path / "attempt_3"


def test_a_disk_that_takes_nothing_ends_no_launch(tmp_path):
    (tmp_path / "file").touch()
    assert LogFolders(tmp_path / "file").folder(0, [0]) == tmp_path / "file" / "attempt_0"
