"""Images of a node's processes: what is kept of them, and what is left where one cannot be dumped."""

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
import structlog

from pulsetrain.agent.processes import image_room, process_images
from pulsetrain.agent.processes.process_images import ProcessImages, refuse_outsiders
from pulsetrain.core.errors import Unavailable
from pulsetrain.diagnostics import process_dump
from tests.agent.real_processes import until


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
        (target / "core-1.img").touch()
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


def nothing_is_left(folder):
    """No image, and none of its pages."""
    return not (folder / "images").exists() and not list(folder.glob("image-blocks/*"))


def test_an_image_is_read_as_it_was_written(tmp_path, sleeper):
    made = images(tmp_path)
    written = dump(made, sleeper)
    assert made.read("one") == written
    assert written.processes == {"rank_0": sleeper, "store": sleeper}
    assert set(written.files) == {
        f"{process}/{file}-1.img" for process in ("rank_0", "store") for file in ("core", "pages")
    }


@pytest.fixture
def trees():
    """Two processes, each with a child in a session of its own."""
    script = (
        "import subprocess, time; subprocess.Popen(['sleep', '60'], start_new_session=True); time.sleep(60)"
    )
    started = [subprocess.Popen([sys.executable, "-c", script], start_new_session=True) for _ in range(2)]
    assert until(lambda: all(psutil.Process(p.pid).children() for p in started))
    family = [q for p in started for q in (psutil.Process(p.pid), *psutil.Process(p.pid).children())]
    yield [p.pid for p in started]
    for process in family:
        process.kill()
    for process in started:
        process.wait()


def family_states(pids):
    roots = [psutil.Process(pid) for pid in pids]
    return {process.status() for root in roots for process in (root, *root.children())}


def test_everything_stands_before_the_first_process_is_dumped(tmp_path, trees):
    states = []

    def run(command, timeout_s):
        states.append(family_states(trees))
        folder = command[command.index("-D") + 1]
        pathlib.Path(folder, "dump.log").write_text("(00.1) Error (criu/x.c:1): no such thing\n")
        return 1, ""

    made = ProcessImages(tmp_path, run=run)
    made.lacks = ""
    with pytest.raises(Unavailable, match="no such thing"):
        made.dump("one", 3, dict(zip(("rank_0", "rank_1"), trees, strict=True)), {})
    assert states == [{psutil.STATUS_STOPPED}]
    assert psutil.STATUS_STOPPED not in family_states(trees)


def test_a_restore_has_the_time_of_the_dump_for_each_process(tmp_path, sleeper):
    written = dump(images(tmp_path), sleeper)
    assert 0 < written.dump_s < written.restore_limit_s == process_images.RESTORE_TIMEOUT_S
    assert replace(written, dump_s=100.0).restore_limit_s == 200.0


def test_a_dump_that_nobody_wants_any_more_begins_no_other_process_and_lets_all_run_on(tmp_path, trees):
    begun = []

    def run(command, timeout_s):
        begun.append(command[3])
        return 0, ""

    made = ProcessImages(tmp_path, run=run)
    made.lacks = ""
    processes = dict(zip(("rank_0", "rank_1"), trees, strict=True)) | {"store": trees[0]}
    with pytest.raises(Unavailable, match="it is late"):
        made.dump("one", 3, processes, {}, why_end=lambda: "it is late" if len(begun) == 2 else "")
    assert begun == [str(pid) for pid in trees]
    assert psutil.STATUS_STOPPED not in family_states(trees)
    assert nothing_is_left(tmp_path)


def test_where_one_process_cannot_be_dumped_no_image_is_left(tmp_path, sleeper):
    with pytest.raises(Unavailable, match=r"store: Error .* no such thing"):
        dump(images(tmp_path, fails="store"), sleeper)
    assert not (tmp_path / "images").exists()


def test_an_image_that_has_changed_is_refused(tmp_path, sleeper):
    made = images(tmp_path)
    dump(made, sleeper)
    (tmp_path / "images/one/store/core-1.img").write_text("other")
    with pytest.raises(Unavailable, match=r"store/core-1\.img is not what was written"):
        made.read("one")


def test_an_image_from_before_the_host_was_started_anew_is_refused(tmp_path, sleeper, monkeypatch):
    made = images(tmp_path)
    dump(made, sleeper)
    (tmp_path / "boot").write_text("another")
    monkeypatch.setattr(process_images, "BOOT", tmp_path / "boot")
    with pytest.raises(Unavailable, match="started anew"):
        made.read("one")


def test_a_host_that_has_another_name_since_restores_its_image(tmp_path, sleeper, monkeypatch):
    made = images(tmp_path)
    written = dump(made, sleeper)
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    assert made.read("one") == written


def test_a_pid_that_is_in_use_is_not_taken(tmp_path, sleeper):
    made = images(tmp_path)
    written = dump(made, sleeper)
    for _ in range(2):  # the image stays, and its pages do not stay on the disk twice
        assert made.read("one") == written
        with pytest.raises(Unavailable, match=f"pid {sleeper} is in use"):
            made.restore(written, None, {})
        assert made.keeps("one")
        assert not list(tmp_path.glob("images/*/*/pages-*"))


def test_who_does_not_want_images_gets_none(tmp_path, sleeper):
    with pytest.raises(Unavailable, match="never"):
        dump(images(tmp_path, allowed="never"), sleeper)


def test_ranks_that_may_squash_are_not_dumped(tmp_path, sleeper):
    made = ProcessImages(tmp_path, squashes=True, run=lambda *_: pytest.fail("it was begun"))
    with pytest.raises(Unavailable, match="squash = true in its configuration"):
        dump(made, sleeper)
    assert not made.possible


def test_pages_of_ranks_that_are_the_same_are_kept_once_and_the_next_image_adds_nothing(tmp_path, sleeper):
    made = images(tmp_path)
    first = dump(made, sleeper, ("rank_0", "rank_1", "store"))
    made.read("one")
    made.clear()
    again = dump(made, sleeper, ("rank_0", "rank_1", "store"))
    assert (first.bytes, first.stored_bytes) == (3 * len(str(sleeper)), 4096)
    assert (first.new_bytes, again.new_bytes) == (4096, 0)
    assert made.read("one") == again


def test_pages_that_are_not_what_was_kept_are_refused(tmp_path, sleeper):
    made = images(tmp_path)
    dump(made, sleeper)
    [pack] = (tmp_path / "image-blocks").glob("*.pack")
    pack.write_bytes(b"other" + pack.read_bytes()[5:])
    with pytest.raises(Unavailable, match=r"pages-1\.img: a block of it is damaged"):
        made.read("one")


def test_an_image_outlives_a_disk_that_is_too_full_to_restore_it(tmp_path, sleeper, monkeypatch):
    made = images(tmp_path)
    written = dump(made, sleeper)

    def full(name, target):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(made._blocks, "get", full)
        with pytest.raises(Unavailable, match="No space left"):
            made.read("one")
    assert made.keeps("one")
    assert made.read("one") == written


def test_a_full_disk_leaves_no_image_and_nothing_of_its_pages(tmp_path, sleeper, monkeypatch):
    made = images(tmp_path)

    def full(name, source):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(made._blocks, "put", full)
    with pytest.raises(Unavailable, match="No space left"):
        dump(made, sleeper)
    assert nothing_is_left(tmp_path)


def test_processes_run_on_whatever_goes_wrong_in_a_dump(tmp_path, trees, monkeypatch):
    made = images(tmp_path)

    def broken(name, source):
        raise MemoryError("no more")

    monkeypatch.setattr(made._blocks, "put", broken)
    with pytest.raises(Unavailable, match=r"image: MemoryError\('no more'\)"):
        made.dump("one", 3, dict(zip(("rank_0", "rank_1"), trees, strict=True)), {})
    assert psutil.STATUS_STOPPED not in family_states(trees)
    assert nothing_is_left(tmp_path)


def test_no_process_is_stopped_for_an_image_that_the_disk_has_no_room_for(tmp_path, trees, monkeypatch):
    begun = []
    made = ProcessImages(tmp_path, run=lambda *command: begun.append(command) or (0, ""))
    made.lacks = ""
    small = shutil.disk_usage(tmp_path)._replace(total=10**9, free=int(51e6))
    monkeypatch.setattr(image_room, "memory_of", lambda pids: image_room.Memory(*[len([*pids]) * 10**6] * 2))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: small)
    monkeypatch.setattr(process_images, "stop", begun.append)
    with pytest.raises(Unavailable, match=r"it may take 0\.0 GB, and .* has 0\.1 GB free"):
        made.dump("one", 3, dict(zip(("rank_0", "rank_1"), trees, strict=True)), {})
    assert not begun
    assert nothing_is_left(tmp_path)


@pytest.mark.parametrize(("known", "refused", "logged"), [(True, True, 0), (False, False, 2)])
def test_what_a_process_has_on_gpus_needs_room_on_the_disk_too(
    tmp_path, sleeper, monkeypatch, known, refused, logged
):
    made = images(tmp_path)
    made._gpu_memory = lambda: {sleeper: 10**9} if known else {}
    monkeypatch.setattr(process_images, "_uses_gpu", lambda pid: True)
    monkeypatch.setattr(image_room, "memory_of", lambda pids: image_room.Memory(10, 10))
    small = shutil.disk_usage(tmp_path)._replace(total=10**9, free=10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: small)
    with structlog.testing.capture_logs() as logs, contextlib.suppress(Unavailable):
        dump(made, sleeper)
    assert made.keeps("one") is not refused
    assert [line["event"] for line in logs].count("image_room_unknown") == logged


def test_pages_of_the_last_image_go_first_where_the_disk_is_short(tmp_path, sleeper, monkeypatch):
    made = images(tmp_path)
    dump(made, sleeper)
    kept = made._blocks.disk_bytes()
    disk = shutil.disk_usage(tmp_path)._replace(total=1000)
    needed = image_room.Memory(kept, kept)

    def usage(_):
        return disk._replace(free=50 + 3 * kept - made._blocks.disk_bytes())

    monkeypatch.setattr(image_room, "memory_of", lambda pids: needed)
    monkeypatch.setattr(shutil, "disk_usage", usage)
    assert kept
    assert dump(made, sleeper).new_bytes > 0
    assert made.keeps("one")


def test_what_an_agent_that_was_killed_has_left_is_removed_and_a_whole_image_stays(tmp_path, sleeper):
    made = images(tmp_path)
    written = dump(made, sleeper)
    made.tidy()
    assert made.read("one") == written
    (tmp_path / "images/one/manifest.json").unlink()
    made.tidy()
    assert nothing_is_left(tmp_path)


def test_damaged_pages_do_not_get_into_the_next_image(tmp_path, sleeper):
    made = images(tmp_path)
    dump(made, sleeper)
    [pack] = (tmp_path / "image-blocks").glob("*.pack")
    pack.write_bytes(b"other" + pack.read_bytes()[5:])
    with pytest.raises(Unavailable, match="a block of it is damaged"):
        made.read("one")
    assert not made.keeps("one")  # it can never be restored
    again = dump(made, sleeper)
    assert made.read("one") == again


def test_nothing_from_before_the_host_was_started_anew_is_kept(tmp_path, sleeper, monkeypatch):
    made = images(tmp_path)
    dump(made, sleeper)
    (tmp_path / "boot").write_text("another")
    monkeypatch.setattr(process_images, "BOOT", tmp_path / "boot")
    made.tidy()
    assert nothing_is_left(tmp_path)


def test_pages_whose_image_is_gone_do_not_outlive_the_agent(tmp_path, sleeper):
    made = images(tmp_path)
    dump(made, sleeper)
    made.clear()
    made.tidy()
    assert not list(tmp_path.glob("image-blocks/*"))


@pytest.mark.parametrize("ours", [True, False])
def test_what_a_failed_restore_has_brought_back_is_ended_with_its_children_and_nobody_else(ours):
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo; wait"], stdout=subprocess.PIPE) as root:
        root.stdout.readline()
        processes = [*psutil.Process(root.pid).children(), psutil.Process(root.pid)]
        assert len(processes) == 2
        process_images.end_tree(root.pid, parent=os.getpid() if ours else 1)
        gone, _ = psutil.wait_procs(processes, timeout=10 if ours else 0.2)
        assert len(gone) == (2 if ours else 0)
        for process in processes:
            if process.is_running():
                process.kill()


@pytest.mark.parametrize(
    ("offsets", "ahead_ns"),
    [
        ("monotonic         -33 967000000\nboottime          -33 0\n", -32_033_000_000),
        ("monotonic           0         0\nboottime            5 0\n", 0),
        (None, 0),
        ("monotonic nonsense\n", 0),
    ],
)
def test_how_far_the_clock_of_a_restored_process_is_ahead(tmp_path, offsets, ahead_ns):
    for name, text in (("77", offsets), ("self", "monotonic 0 0\n")):
        (tmp_path / name).mkdir()
        if text is not None:
            (tmp_path / name / "timens_offsets").write_text(text)
    assert process_images.clock_ahead_ns(77, tmp_path) == ahead_ns


TALKS = """
import socket, sys, time
end = socket.socket(fileno=int(sys.argv[1]))
end.sendall(b"0")
for line in sys.stdin:
    assert end.recv(1)
    end.sendall(b"0")
    print(line, end="", flush=True)
"""


@pytest.fixture
def talkers():
    """Two processes with a TCP connection. Each says a line once it has heard from the other."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ends = [socket.create_connection(server.getsockname())]
        ends.append(server.accept()[0])
    started = []
    for end in ends:
        command = [sys.executable, "-c", TALKS, str(end.fileno())]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        started.append(
            subprocess.Popen(command, pass_fds=[end.fileno()], start_new_session=True, bufsize=1, **pipes)
        )
        end.close()
    yield started
    for process in started:
        process.kill()
        process.communicate()


def says(process, word):
    process.stdin.write(f"{word}\n")
    return process.stdout.readline().strip()


@pytest.mark.integration
def test_connections_go_on_after_a_dump_that_nobody_wants_any_more(tmp_path, talkers):
    if lacks := process_dump.lacks():
        pytest.skip(f"{lacks}: run deploy/criu as root")
    assert [says(each, "before") for each in talkers] == ["before"] * 2
    looks = []

    def why_end():
        looks.append(True)
        return "it is late" if len(looks) == 2 else ""  # the first one is dumped by then

    made = ProcessImages(tmp_path)
    with pytest.raises(Unavailable, match="it is late"):
        made.dump("one", 3, {f"rank_{n}": each.pid for n, each in enumerate(talkers)}, {}, why_end=why_end)
    assert [says(each, "after") for each in talkers] == ["after"] * 2
    assert nothing_is_left(tmp_path)


class TestConnections:
    """Who is at the other end must come back as well."""

    def test_a_connection_among_the_dumped_ones_is_fine_and_one_to_somebody_else_is_not(self):
        code = "import socket, sys, time; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); "
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            command = [sys.executable, "-c", code + "print(flush=True); time.sleep(60)", str(port)]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
                accepted, _ = server.accept()
                try:
                    child.stdout.readline()
                    with pytest.raises(Unavailable, match=f"rank_0 has a connection to 127.0.0.1:{port}, "):
                        refuse_outsiders({"rank_0": child.pid})
                    refuse_outsiders({"rank_0": child.pid, "rank_1": os.getpid()})
                finally:
                    accepted.close()
                    child.kill()

    def test_a_process_that_is_gone_has_none(self):
        refuse_outsiders({"rank_0": 2**22 + 1})

    @pytest.mark.parametrize(
        ("error", "ended", "seen"),
        [
            (psutil.NoSuchProcess, False, r"rank_0 has a connection to 10\.0\.0\.9:80"),
            (psutil.AccessDenied, True, r"rank_0 has a connection to 10\.0\.0\.9:80"),
            (psutil.AccessDenied, False, "the connections of pid 5 cannot be seen"),
        ],
    )
    def test_one_process_of_which_nothing_is_seen_hides_no_connection_of_others(
        self, monkeypatch, error, ended, seen
    ):
        def unseen(_):
            raise error(5)

        here, there = SimpleNamespace(ip="10.0.0.1", port=1), SimpleNamespace(ip="10.0.0.9", port=80)
        outsider = SimpleNamespace(laddr=here, raddr=there, status=psutil.CONN_ESTABLISHED)
        state = psutil.STATUS_ZOMBIE if ended else psutil.STATUS_STOPPED
        child = SimpleNamespace(pid=5, net_connections=unseen, status=lambda: state)
        other = SimpleNamespace(pid=6, net_connections=lambda _: [outsider])
        monkeypatch.setattr(process_images, "_tree", lambda _: [child, other])
        with pytest.raises(Unavailable, match=seen):
            refuse_outsiders({"rank_0": 4})
