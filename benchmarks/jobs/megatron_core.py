"""Train a small GPT built from Megatron-core's tensor-parallel layers.

torchrun --nproc-per-node 2 benchmarks/jobs/megatron_core.py --tp 2 --steps 50
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from gpt import VOCABULARY, Corpus, finish, parser, say
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor


class CoreAttention(torch.nn.Module):
    """Scaled dot product on any device: Megatron's own takes its buffers from CUDA."""

    def __init__(self, config: TransformerConfig, layer_number: int, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))  # from length, batch, heads, width
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.permute(2, 0, 1, 3).flatten(2)


def model_of(args: Any) -> GPTModel:
    config = TransformerConfig(
        num_layers=args.layers,
        hidden_size=args.width,
        num_attention_heads=4,
        use_cpu_initialization=True,
        pipeline_dtype=torch.float32,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bias_dropout_fusion=False,
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
    )
    spec = get_gpt_layer_local_spec()
    spec.submodules.self_attention.submodules.core_attention = CoreAttention
    return GPTModel(config, spec, VOCABULARY, args.length)


def average_gradients(model: torch.nn.Module) -> None:
    """Over the data-parallel ranks."""
    group = parallel_state.get_data_parallel_group()
    if dist.get_world_size(group) == 1:
        return
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad, group=group)
            parameter.grad /= dist.get_world_size(group)


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("--tp", type=int, default=2, help="tensor-parallel ranks")
    args = flags.parse_args()
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=args.tp)
    torch.manual_seed(args.seed)
    model, corpus = model_of(args), Corpus(args.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    replica = parallel_state.get_data_parallel_rank()
    draw = torch.Generator().manual_seed(args.seed * 1000 + replica)
    positions = torch.arange(args.length).expand(args.batch, -1)
    mask = torch.ones(1, 1, args.length, args.length, dtype=torch.bool).triu(1)
    value = float("nan")
    for step in range(args.steps):
        tokens, targets = corpus.batch(args.batch, args.length, draw)
        loss = model(tokens, positions, mask, labels=targets).mean()
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model)
        optimizer.step()
        value = loss.item()
        if dist.get_rank() == 0:
            say(step, value)
    if dist.get_rank() == 0:
        finish(value)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
