"""Images of a node's processes: what is kept of them, and what is left where one cannot be dumped."""

import subprocess

import pytest

from pulsetrain.agent.processes import process_images
from pulsetrain.agent.processes.process_images import ProcessImages
from pulsetrain.core.errors import Unavailable


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    yield process.pid
    process.kill()
    process.wait()


def images(folder, *, fails="", allowed="auto"):
    def run(command, timeout_s):
        target = folder / "images/one" / command[command.index("-D") + 1].rpartition("/")[2]
        (target / "pages-1.img").write_text(command[3])
        if target.name == fails:
            (target / "dump.log").write_text("(00.1) Error (criu/x.c:1): no such thing\n")
            return 1, ""
        return 0, ""

    made = ProcessImages(folder, allowed=allowed, run=run)
    if allowed == "auto":
        made.lacks = ""
    return made


def dump(made, pid, names=("rank_0", "store")):
    return made.dump("one", 3, dict.fromkeys(names, pid), {"rank_0": ("a.out", "a.err")})


def test_an_image_is_read_as_it_was_written(tmp_path, sleeper):
    made = images(tmp_path)
    written = dump(made, sleeper)
    assert made.read("one") == written
    assert written.processes == {"rank_0": sleeper, "store": sleeper}
    assert set(written.files) == {"rank_0/pages-1.img", "store/pages-1.img"}


def test_where_one_process_cannot_be_dumped_no_image_is_left(tmp_path, sleeper):
    with pytest.raises(Unavailable, match=r"store: Error .* no such thing"):
        dump(images(tmp_path, fails="store"), sleeper)
    assert not (tmp_path / "images").exists()


def test_an_image_that_has_changed_is_refused(tmp_path, sleeper):
    made = images(tmp_path)
    dump(made, sleeper)
    (tmp_path / "images/one/store/pages-1.img").write_text("other")
    with pytest.raises(Unavailable, match=r"store/pages-1\.img is not what was written"):
        made.read("one")


def test_an_image_from_before_the_host_was_started_anew_is_refused(tmp_path, sleeper, monkeypatch):
    made = images(tmp_path)
    dump(made, sleeper)
    (tmp_path / "boot").write_text("another")
    monkeypatch.setattr(process_images, "BOOT", tmp_path / "boot")
    with pytest.raises(Unavailable, match="started anew"):
        made.read("one")


def test_a_pid_that_is_in_use_is_not_taken(tmp_path, sleeper):
    made = images(tmp_path)
    with pytest.raises(Unavailable, match=f"pid {sleeper} is in use"):
        made.restore(dump(made, sleeper), None, {})


def test_who_does_not_want_images_gets_none(tmp_path, sleeper):
    with pytest.raises(Unavailable, match="never"):
        dump(images(tmp_path, allowed="never"), sleeper)
