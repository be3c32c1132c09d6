"""FLOPs and tokens from the autograd graph agree with torch's flop counter. The graph stays as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from pulsetrain.collectors.rank.auto import graph, sizes
from pulsetrain.collectors.rank.auto.graph import GraphCount, count

TOKENS = torch.zeros(2, 8, dtype=torch.int64)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.positions = nn.Embedding(11, 8), nn.Embedding(8, 8)
        self.qkv, self.head = nn.Linear(8, 24), nn.Linear(8, 11)

    def forward(self, tokens):
        hidden = self.embed(tokens) + self.positions(torch.arange(tokens.shape[1]))
        q, k, v = self.qkv(hidden).view(*tokens.shape, 3, 2, 4).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(mixed.transpose(1, 2).reshape(hidden.shape))


def forward_flops(compute):
    with FlopCounterMode(display=False) as counter:
        compute()
    return counter.get_total_flops()


def test_an_edge_of_the_graph_counts_as_the_tensor_that_was_there():
    """As in torch's pipeline stages, which free their outputs before they go backward."""
    model = Attention()
    edge = get_gradient_edge(model(TOKENS).sum())
    assert count(edge) == count((edge,)) == count(model(TOKENS).sum())


def test_a_transformers_flops_are_three_times_its_forward_and_its_tokens_are_the_largest_lookup():
    model = Attention()
    assert count(model(TOKENS).sum()) == GraphCount(3.0 * forward_flops(lambda: model(TOKENS)), 16)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(2, 4, 3), (1, 2, 8, 8)),
        (nn.Conv2d(4, 4, 3, groups=2, stride=2, padding=1), (1, 4, 8, 8)),
        (nn.ConvTranspose2d(2, 3, 2, stride=2), (1, 2, 4, 4)),
        (nn.Linear(3, 5), (7, 3)),
        (nn.Linear(3, 5), (2, 7, 3)),
    ],
)
def test_an_operand_without_a_gradient_costs_no_product_in_the_backward_pass(layer, shape):
    batch = torch.ones(shape)
    forward = forward_flops(lambda: layer(batch))
    assert count(layer(batch).sum()).flops == 2.0 * forward
    assert count(layer(batch.requires_grad_()).sum()).flops == 3.0 * forward


def test_what_is_recomputed_or_recurrent_hides_its_products():
    layer, batch = nn.Linear(4, 4), torch.ones(2, 4, requires_grad=True)
    assert count(checkpoint(layer, batch, use_reentrant=True).sum()).flops == 0
    assert count(checkpoint(layer, batch, use_reentrant=False).sum()).flops > 0
    assert count(nn.LSTM(4, 4)(batch[None])[0].sum()).flops == 0


@pytest.mark.parametrize("name", ["GroupedMmBackward0", "LinearBackward0", "_EfficientAttentionBackward0"])
def test_products_without_a_formula_are_hidden_ones(name):
    assert graph._hides_products(name)


def test_saved_tensors_are_not_unpacked_and_the_gradients_are_the_same():
    model, unpacked = nn.Linear(4, 4), []

    def unpack(tensor):
        unpacked.append(1)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        loss = model(torch.ones(2, 4)).square().sum()
    count(loss)
    assert unpacked == []
    loss.backward()
    assert unpacked


def test_a_tensor_without_a_graph_has_none():
    assert count(torch.ones(())) == GraphCount(0.0, 0)
    assert count(None) == GraphCount(0.0, 0)


def test_the_parameters_behind_a_loss_are_known_and_whether_some_are_recomputed():
    model = Attention()
    whole = count(model(TOKENS).sum())
    assert whole.leaves == {id(p): p.numel() for p in model.parameters()}
    assert not whole.hides_leaves
    outer = checkpoint(model.head, model.embed(TOKENS), use_reentrant=True).sum()
    assert count(outer).leaves == {id(model.embed.weight): 88}
    assert count(outer).hides_leaves


def test_a_tensor_that_gets_a_gradient_and_is_no_parameter_has_no_size():
    weight, found = nn.Parameter(torch.ones(4, 4)), torch.ones(4, 4, requires_grad=True)
    assert count((weight @ found).sum()).leaves == {id(weight): 16, id(found): 0}


def test_a_parameter_of_which_a_shard_is_left_counts_as_a_whole():
    zero, flat = nn.Parameter(torch.empty(0)), nn.Parameter(torch.empty(3))
    zero.ds_numel, flat._unpadded_unsharded_size = 12, torch.Size([11])
    assert [sizes.numbers(p) for p in (zero, flat, nn.Parameter(torch.empty(5)))] == [12, 11, 5]
