"""What a host lacks to dump a process."""

import os

import pytest

from pulsetrain.diagnostics.process_dump import lacks

ROOT_USER, NONE, RESTORES = 0x1FFFFFFFFFF, 0, 1 << 40 | 1 << 19


class Host:
    def __init__(self, folder):
        self.folder, self.ran, self.version = folder, [], "Version: 4.2.1\n"
        (folder / "bin").mkdir()
        (folder / "proc/self").mkdir(parents=True)
        self.capabilities(ROOT_USER)
        self.installs("criu")

    def capabilities(self, bits):
        (self.folder / "proc/self/status").write_text(f"Name:\tpython\nCapEff:\t{bits:016x}\n")

    def installs(self, name):
        (self.folder / "bin" / name).write_text("#!/bin/sh\n")
        (self.folder / "bin" / name).chmod(0o755)

    def has_gpus(self):
        (self.folder / "proc/driver/nvidia").mkdir(parents=True)
        (self.folder / "proc/driver/nvidia/version").write_text("535")

    def lacks(self, status=0, said="Looks good.\n"):
        def run(command):
            self.ran.append([os.path.basename(command[0]), *command[1:]])
            return (0, self.version) if "--version" in command else (status, said)

        return lacks(root=self.folder, path=str(self.folder / "bin"), run=run)


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


def test_a_host_that_can_lacks_nothing(host):
    assert host.lacks() == ""
    assert host.ran == [["criu", "check"], ["criu", "--version"]]
    host.capabilities(RESTORES)
    assert host.lacks() == ""


def test_without_criu_nothing_else_is_asked(host):
    (host.folder / "bin/criu").unlink()
    assert host.lacks() == "criu is not installed"
    assert not host.ran


@pytest.mark.parametrize("bits", [NONE, 1 << 40, 1 << 19])
def test_without_a_capability(host, bits):
    host.capabilities(bits)
    assert "no capability to dump processes: run as root" in host.lacks()
    assert not host.ran


def test_where_capabilities_cannot_be_read_there_are_none(host):
    (host.folder / "proc/self/status").unlink()
    assert "no capability" in host.lacks()


def test_gpus_need_a_program_of_their_own(host):
    host.has_gpus()
    assert "cuda-checkpoint is not installed" in host.lacks()
    host.installs("cuda-checkpoint")
    assert host.lacks() == ""


def test_what_criu_says_of_the_kernel_is_passed_on_in_one_line(host):
    said = "Warn: a\n\nError (criu/cr-check.c:1): The kernel is too old\n\n"
    assert host.lacks(1, said) == "criu check fails: Error (criu/cr-check.c:1): The kernel is too old"
    assert host.lacks(3, "") == "criu check fails: status 3"


@pytest.mark.parametrize(
    ("kernel", "version", "works"),
    [("6.18.4", "4.1.1", False), ("6.18.4", "4.2", True), ("6.15.0", "3.17.1", True), ("7.0", "4.1", False)],
)
def test_an_old_criu_cannot_dump_sockets_on_a_new_kernel(host, kernel, version, works):
    (host.folder / "proc/sys/kernel").mkdir(parents=True)
    (host.folder / "proc/sys/kernel/osrelease").write_text(kernel + "\n")
    host.version = f"Version: {version}\n"
    assert (host.lacks() == "") is works


def test_the_check_runs_here_and_gives_one_line(tmp_path):
    answer = lacks()
    assert "\n" not in answer
