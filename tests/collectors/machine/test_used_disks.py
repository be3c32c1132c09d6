"""Disks of a job's folders on machines of files: partitions, RAIDs, volumes, NVMe, overlays."""

import pytest

from pulsetrain.collectors.machine.used_disks import UsedDisks

MOUNTS = """\
22 1 8:2 / / rw - ext4 /dev/sda2 rw
23 22 9:0 / /data rw - xfs /dev/md0 rw
24 22 253:0 / /scratch\\040disk rw - ext4 /dev/mapper/vg-scratch rw
25 22 8:33 / /media/stick rw - vfat /dev/sdc1 rw
26 22 8:49 / /mnt/other rw - ext4 /dev/sdd1 rw
27 22 0:40 / /net rw - nfs4 server:/net rw
28 22 8:65 / /var/lib/kubelet/pods/x/volume rw - ext4 /dev/sde1 rw
"""


class Tree:
    """A machine's block devices as the kernel shows them."""

    def __init__(self, root):
        self.sys, self.proc, self.number = root / "sys", root / "proc", 0
        (self.sys / "class" / "block").mkdir(parents=True)
        (self.sys / "dev" / "block").mkdir(parents=True)
        (self.proc / "self").mkdir(parents=True)
        self.mount(MOUNTS)
        self.disk("sda", "8:0", {"sda1": "8:1", "sda2": "8:2"})
        self.disk("md0", "9:0", slaves=("nvme0n1p1", "sdb"))
        self.disk("sdb", "8:16")
        self.disk("nvme0n1", "259:0", {"nvme0n1p1": "259:1"}, controller="nvme0")
        self.disk("nvme1n1", "259:2", controller="nvme1")
        self.disk("dm-0", "253:0", slaves=("nvme1n1",))
        for at, name in enumerate("cde"):
            self.disk(f"sd{name}", f"8:{32 + 16 * at}", {f"sd{name}1": f"8:{33 + 16 * at}"})
        self.disk("sdx", "8:200")

    def mount(self, text):
        (self.proc / "self" / "mountinfo").write_text(text)

    def disk(self, name, number, parts=(), slaves=(), controller=""):
        folder = self.sys / "devices" / (controller or "host0") / name
        folder.mkdir(parents=True)
        self.known(name, number, folder)
        for part in parts:
            (folder / part).mkdir()
            (folder / part / "partition").write_text("1")
            self.known(part, parts[part], folder / part)
        for slave in slaves:
            (folder / "slaves" / slave).mkdir(parents=True)
        if controller:
            (folder / "device").symlink_to(folder.parent)
            (self.sys / "class" / "nvme" / controller).mkdir(parents=True)

    def known(self, name, number, folder):
        (self.sys / "class" / "block" / name).symlink_to(folder)
        (self.sys / "dev" / "block" / number).symlink_to(folder)

    def disks(self, *folders, clock_s=lambda: 0.0):
        disks = UsedDisks(folders, sys_root=self.sys, proc=self.proc, clock_s=clock_s)
        disks.resolve()
        return disks


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


@pytest.mark.parametrize(
    ("device", "use"),
    [
        ("sda2", "used"),
        ("sda", "used"),
        ("md0", "used"),
        ("sdb", "used"),
        ("nvme0n1p1", "used"),
        ("nvme0n1", "used"),
        ("nvme0", "used"),
        ("nvme0c1n1", "used"),
        ("dm-0", "maybe"),
        ("nvme1", "maybe"),
        ("sdd", "maybe"),
        ("sdx", "unused"),
        ("sdc", "unused"),
        ("sde1", "unused"),
        ("sdz", "maybe"),
        ("", "maybe"),
    ],
)
def test_a_disk_is_used_where_a_folder_of_the_job_is_on_it(tree, device, use):
    assert tree.disks("/data/checkpoints").use(device) == use


def test_a_folder_with_a_space_and_one_of_a_network_file_system(tree):
    disks = tree.disks("/scratch disk/logs", "/net/data", "s3://bucket/run")
    assert [disks.use(name) for name in ("dm-0", "nvme1", "sdb", "sdx")] == [
        "used",
        "used",
        "maybe",
        "unused",
    ]


@pytest.mark.parametrize("kind", ["overlay", "zfs"])
def test_on_a_file_system_that_hides_its_disks_any_may_be_used(tree, kind):
    tree.mount(f"22 1 0:50 / / rw - {kind} source rw\n")
    assert tree.disks().use("sdx") == "maybe"


def test_beside_a_file_system_that_hides_its_disks_none_is_called_unused(tree):
    assert tree.disks("/data").use("sdx") == "unused"
    mounts = (tree.proc / "self" / "mountinfo").read_text()
    tree.mount(mounts + "99 1 0:51 / /tank rw - zfs tank/data rw\n")
    assert tree.disks("/data").use("sdx") == "maybe"


def test_a_disk_that_is_gone_is_remembered(tree):
    now_s = [0.0]
    disks = tree.disks("/data", clock_s=lambda: now_s[0])
    disks.look()
    for name in ("sdb", "sdx"):
        (tree.sys / "class" / "block" / name).unlink()
    (tree.sys / "devices" / "host0" / "md0" / "slaves" / "sdb").rmdir()
    now_s[0] = 60.0
    assert (disks.use("sdb"), disks.use("sdx")) == ("used", "unused")


def test_until_the_folders_are_found_any_disk_may_be_used(tree):
    assert UsedDisks((), sys_root=tree.sys, proc=tree.proc).use("sdx") == "maybe"


def test_this_machine_can_be_asked():
    disks = UsedDisks(("/tmp",))
    disks.start()
    assert disks.use("no such disk") == "maybe"
