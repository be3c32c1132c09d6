"""Which RDMA ports a machine has, from trees as /sys/class/infiniband has them."""

import pytest

from pulsetrain.collectors.machine.rdma_ports import RdmaPort, rdma_ports
from tests.repository import DATA

RECORDED = DATA / "rdma-h100" / "class-infiniband"
V4 = "0000:0000:0000:0000:0000:ffff:0a00:0002"
LOCAL = "fe80:0000:0000:0000:0e42:a1ff:fe00:0001"
NONE = "0000:0000:0000:0000:0000:0000:0000:0000"


def port(
    root, device="mlx5_0", number=1, *, layer="InfiniBand", state="4: ACTIVE", gids=(), near=None, rate=""
):
    folder = root / device / "ports" / str(number)
    (folder / "gids").mkdir(parents=True)
    (folder / "gid_attrs" / "types").mkdir(parents=True)
    (folder / "link_layer").write_text(f"{layer}\n")
    (folder / "state").write_text(f"{state}\n")
    (folder / "rate").write_text(f"{rate}\n")
    for index, (gid, kind) in enumerate(gids):
        (folder / "gids" / str(index)).write_text(f"{gid}\n")
        (folder / "gid_attrs" / "types" / str(index)).write_text(f"{kind}\n")
    if near is not None:
        (root / device / "device").mkdir()
        (root / device / "device" / "numa_node").write_text(f"{near}\n")


@pytest.mark.skipif(not RECORDED.is_dir(), reason=f"no recordings in {DATA}")
def test_a_recorded_machine_has_its_ports():
    found = {p.name: p for p in rdma_ports(RECORDED)}
    assert len(found) == 9
    assert all(p.active for p in found.values())
    assert (found["mlx5_0/1"].gid_index, found["mlx5_bond_0/1"].gid_index) == (-1, 0)


def test_a_port_is_known_with_state_rate_and_memory_node(tmp_path):
    port(tmp_path, near=1, rate="400 Gb/sec (4X NDR)")
    port(tmp_path, "mlx5_1", 2, state="1: DOWN", near=-1)
    assert rdma_ports(tmp_path) == [
        RdmaPort(device="mlx5_0", number=1, active=True, gid_index=-1, near=1, bits_per_s=4e11),
        RdmaPort(device="mlx5_1", number=2, active=False, gid_index=-1, near=-1),
    ]


@pytest.mark.parametrize(
    ("gids", "index"),
    [
        ([(LOCAL, "IB/RoCE v1"), (LOCAL, "RoCE v2"), (V4, "IB/RoCE v1"), (V4, "RoCE v2")], 3),
        ([(LOCAL, "IB/RoCE v1"), (LOCAL, "RoCE v2")], 1),
        ([(NONE, "RoCE v2"), (LOCAL, "IB/RoCE v1")], 1),
        ([], 0),
    ],
)
def test_roce_takes_a_gid_of_version_2_with_an_ipv4_address_if_there_is_one(tmp_path, gids, index):
    port(tmp_path, layer="Ethernet", gids=gids)
    assert rdma_ports(tmp_path)[0].gid_index == index


def test_other_link_layers_and_no_folder_at_all_have_no_port(tmp_path):
    port(tmp_path, layer="Unspecified")
    assert rdma_ports(tmp_path) == rdma_ports(tmp_path / "none") == []
