"""Model FLOPs and tokens of one forward pass, read from the autograd graph that it has left.

Only shapes are read: no saved tensor is unpacked, no operation is intercepted, and nothing runs on a device.
A product of m x k by k x n has 2mkn FLOPs, and as many again for each operand that gets a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from pulsetrain.collectors.rank.auto import sizes

MOST_NODES = 50_000
"""A larger graph is not counted. Each node takes about two microseconds."""
HARMLESS = ("torch::autograd::", "_DDPSinkBackward", "RegisterPostBackwardFunctionBackward")
"""Nodes without a product inside: torch's own of its engine, of DDP and of FSDP2."""
LEAF = "torch::autograd::AccumulateGrad"
RECOMPUTED = "Checkpoint"
"""In the names of functions that run forward again in the backward pass, as torch's and DeepSpeed's."""
RECURRENT = ("Rnn", "Lstm", "Gru")
"""Their kernels hide products."""
UNCOUNTED = (
    "GroupedMm",
    "LinearBackward",
    "MatmulBackward",
    "Addbmm",
    "Trilinear",
    "FlashAtt",
    "EfficientAtt",
)
"""Products for which there is no formula here, such as those of all experts at once."""
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GraphCount:
    """`flops` of forward and backward, 0: unknown. `tokens`: the most indices that an embedding was given.

    `leaves`: how many numbers of each parameter that gets a gradient this rank computes with, by its id. Any
    other tensor that gets one has 0: the input of a pipeline stage, or what is searched for.
    `hides_leaves`: whether there are more of them, in what is recomputed.
    """

    flops: float
    tokens: int
    leaves: Mapping[int, int] = field(default_factory=dict, compare=False)
    hides_leaves: bool = field(default=False, compare=False)


def count(roots: object) -> GraphCount:
    """Count what lies behind the tensors from which a backward pass begins, or behind edges of the graph.

    A node that stands for code of another kind (compiled, recomputed, a function of the user's) may hide
    products. Then `flops` is 0. Tensors that are no plain ones come with such nodes.
    """
    is_edge = isinstance(roots, GradientEdge)  # which is a tuple, too
    several = roots if isinstance(roots, (list, tuple)) and not is_edge else (roots,)
    starts = [node for root in several if (node := _start(root)) is not None]
    flops, tokens, hidden, hides_leaves = 0.0, 0, not starts, False
    leaves: dict[int, int] = {}
    for number, node in enumerate(_nodes(starts)):
        name = node.name()
        if number >= MOST_NODES or _hides_products(name):
            hidden = True
        hides_leaves = hides_leaves or number >= MOST_NODES or RECOMPUTED in name
        if number >= MOST_NODES:
            break
        if name == LEAF:
            leaf = node.variable
            leaves[id(leaf)] = sizes.numbers(leaf) if isinstance(leaf, torch.nn.Parameter) else 0
        if name.startswith("EmbeddingBackward"):
            tokens = max(tokens, prod(_output(node)[:-1]))
        for kind, formula in _PRODUCTS.items():
            if name.startswith(kind):
                flops += formula(node)
    return GraphCount(0.0 if hidden else flops, tokens, leaves, hides_leaves)


def _start(root: object) -> Any:
    """Return the node where a backward pass begins. A pipeline stage that frees its output has an edge."""
    if isinstance(root, GradientEdge):
        return root.node
    return root.grad_fn if isinstance(root, torch.Tensor) else None


def _nodes(starts: Iterable[Any]) -> Iterator[Any]:
    """Yield each node once."""
    waiting, seen = list(starts), set(starts)
    while waiting:
        node = waiting.pop()
        yield node
        for before, _ in node.next_functions:
            if before is not None and before not in seen:
                seen.add(before)
                waiting.append(before)


def _hides_products(name: str) -> bool:
    """Return whether the node may hide products. torch's own operations end in a number, Python's do not."""
    if name.startswith(HARMLESS):
        return False
    if name.lstrip("_").startswith(UNCOUNTED):
        return True
    return not name[-1:].isdigit() or any(kind in name for kind in RECURRENT)


def _output(node: Any) -> Shape:
    """Return the shape of what the operation made."""
    return tuple(node._input_metadata[0].shape)


def _operand(node: Any, index: int) -> tuple[Shape, bool]:
    """Return (shape, whether it gets a gradient) of an operand. Its shape without one: ()."""
    before, output = node.next_functions[index]
    return (tuple(before._input_metadata[output].shape), True) if before is not None else ((), False)


def _product(node: Any, left: int) -> float:
    """FLOPs of a product of matrices whose operands are `left` and the next one."""
    (a, a_grad), (b, b_grad) = _operand(node, left), _operand(node, left + 1)
    inner = a[-1] if a else b[-2] if b else 0
    return 2.0 * prod(_output(node)) * inner * (1 + a_grad + b_grad)


def _convolution(node: Any) -> float:
    _, input_grad = _operand(node, 0)
    weight, weight_grad = _operand(node, 1)
    if not weight:
        return 0.0
    output = _output(node)
    if node._saved_transposed:
        places = output[0] * prod(output[2:]) // prod(node._saved_stride)
        return float(2 * places * prod(weight) * (1 + input_grad + weight_grad))
    return 2.0 * prod(output) * prod(weight[1:]) * (1 + input_grad + weight_grad)


def _attention(node: Any) -> float:
    """Two products of every query with every key, as flop counters have it: causal or not."""
    (query, grad), (key, _), (value, _) = (_operand(node, i) for i in range(3))
    if not (query and key and value):
        return 0.0
    pairs = prod(query[:-1]) * key[-2]
    return 2.0 * pairs * (query[-1] + value[-1]) * (1 + 2 * grad)


_PRODUCTS: Mapping[str, Callable[[Any], float]] = MappingProxyType(
    {
        "AddmmBackward": lambda node: _product(node, 1),
        "MmBackward": lambda node: _product(node, 0),
        "BmmBackward": lambda node: _product(node, 0),
        "BaddbmmBackward": lambda node: _product(node, 1),
        "ConvolutionBackward": _convolution,
        "ScaledDotProduct": _attention,
    }
)
