"""What an update reads and writes: nothing that changes in it stays unseen, nothing unknown is taken over."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.collectors.rank.squash import contents

SHAPES = ((3, 5), (7,), (1,))


def trained(kind=torch.optim.AdamW, steps=2, lr=0.1, **how):
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    optimizer = kind(parameters, lr=lr, **how)
    for _ in range(steps):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    return optimizer


def test_tensors_stand_in_the_same_order_in_every_replica_and_do_not_overlap():
    first, second = contents.read(trained()), contents.read(trained())
    assert [e.name for e in first.entries] == [e.name for e in second.entries]
    assert first.layout == second.layout
    assert contents.digests(first.everything(), first.numbers) == contents.digests(
        second.everything(), second.numbers
    )
    for one, other in zip(first.entries, first.entries[1:], strict=False):
        assert one.at + one.tensor.nbytes <= other.at
    assert first.parameters == 3
    assert [e.name for e in first.entries[3:6]] == [
        f"{key} of parameter 0" for key in ("exp_avg", "exp_avg_sq", "step")
    ]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_single_bit_that_differs_is_found_and_named(data):
    ours, theirs = contents.read(trained()), contents.read(trained())
    entry = data.draw(st.sampled_from(theirs.everything()), label="tensor")
    raw = entry.tensor.detach().reshape(-1).view(torch.uint8)
    at = data.draw(st.integers(0, raw.numel() - 1), label="byte")
    raw[at] ^= 1 << data.draw(st.integers(0, 7), label="bit")
    found = contents.first_difference(
        contents.digests(ours.everything(), ours.numbers),
        contents.digests(theirs.everything(), theirs.numbers),
        ours.everything(),
    )
    assert found == entry.name


@settings(max_examples=30, deadline=None)
@given(rate=st.floats(1e-9, 1e9), decay=st.floats(0, 1), betas=st.tuples(*[st.floats(0, 0.999)] * 2))
def test_numbers_are_taken_over_exactly(rate, decay, betas):
    root, sharer = trained(), trained()
    root.param_groups[0].update(lr=rate, weight_decay=decay, betas=betas)
    contents.set_numbers(sharer, contents.read(root).numbers)
    for key in ("lr", "weight_decay", "betas", "amsgrad"):
        assert sharer.param_groups[0][key] == root.param_groups[0][key]


class Own(torch.optim.AdamW):
    """An optimizer of the script's own."""


def test_torchs_own_optimizers_are_taken_and_others_refused():
    assert contents.refusal(trained()) == ""
    assert contents.refusal(trained(torch.optim.SGD, momentum=0.9)) == ""
    assert contents.refusal(torch.optim.Muon([torch.nn.Parameter(torch.ones(2, 2))])) == ""
    assert "Own may keep more" in contents.refusal(trained(Own))
    assert "LBFGS" in contents.refusal(torch.optim.LBFGS([torch.nn.Parameter(torch.ones(2))]))


def test_tensors_that_do_not_lie_in_one_piece_are_refused():
    parameter = torch.nn.Parameter(torch.ones(4, 4).t()[:, :2])
    assert "not contiguous" in contents.refusal(torch.optim.SGD([parameter], lr=0.1))


def test_tensors_that_other_processes_may_read_are_refused():
    parameter = torch.nn.Parameter(torch.ones(4)).share_memory_()
    assert "other processes" in contents.refusal(torch.optim.SGD([parameter], lr=0.1))


def test_what_is_larger_than_a_buffer_is_refused(monkeypatch):
    optimizer = trained()
    monkeypatch.setattr(contents, "BUFFER_BYTES", contents.read(optimizer).size_bytes)
    assert contents.refusal(optimizer) == ""
    monkeypatch.setattr(contents, "BUFFER_BYTES", contents.BUFFER_BYTES - 1)
    assert "a buffer has" in contents.refusal(optimizer)


def test_a_learning_rate_that_is_a_tensor_is_compared_before_an_update():
    optimizer = trained(lr=torch.tensor(0.1))
    names = [entry.name for entry in contents.read(optimizer).inputs()]
    assert "lr of group 0" in names
    assert "exp_avg of parameter 0" not in names


def test_an_update_in_which_a_scaler_decides_is_refused():
    optimizer = trained()
    optimizer.found_inf = torch.zeros(1)
    assert "GradScaler" in contents.refusal(optimizer)
