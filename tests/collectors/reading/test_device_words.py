"""What an agent says about shared devices, and what it reads of them."""

from tests.collectors.rank.watched import Watched


def test_a_rank_shares_no_device_at_first():
    device = Watched().reader.device
    assert (device.device, device.followed, device.refused) == (-1, True, False)


def test_an_order_waits_for_the_rank():
    device = Watched().reader.device
    device.order(3)
    assert (device.device, device.followed) == (3, False)


def test_a_rank_whose_groups_work_on_a_gpu_refuses():
    from pulsetrain.collectors.layout import W_DEVICE_REFUSED

    watched = Watched()
    watched.handle.state.words[W_DEVICE_REFUSED] = 1
    assert watched.reader.device.refused
