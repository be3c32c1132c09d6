"""A small decoder-only transformer and its data, for the training scripts beside it."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY = 64


class Attention(nn.Module):
    """Causal self-attention. The number of heads follows from the width of what the projections return."""

    def __init__(self, width: int, head_width: int) -> None:
        super().__init__()
        self.head_width = head_width
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            project(x).view(batch, length, -1, self.head_width).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))


class MLP(nn.Module):
    """Two layers with a GELU between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    """One transformer block, normalised before each part."""

    def __init__(self, width: int, head_width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mlp = Attention(width, head_width), MLP(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Embedding(nn.Module):
    """Token and position embeddings."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))


class GPT(nn.Module):
    """The whole model. With targets it returns the loss too."""

    def __init__(self, width: int, layers: int, length: int, heads: int = 4) -> None:
        super().__init__()
        self.embedding = Embedding(width, length)
        self.blocks = nn.ModuleList(Block(width, width // heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return logits, None if targets is None else cross_entropy(logits, targets)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean loss of a batch."""
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


def parser(doc: str | None, *, width: int = 64, layers: int = 2) -> argparse.ArgumentParser:
    """The flags that all these scripts have."""
    flags = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    flags.add_argument("--steps", type=int, default=20, help="optimizer steps")
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--width", type=int, default=width)
    flags.add_argument("--layers", type=int, default=layers)
    flags.add_argument("--length", type=int, default=32, help="tokens in a sequence")
    flags.add_argument("--batch", type=int, default=4, help="sequences in a microbatch of one rank")
    flags.add_argument("--lr", type=float, default=1e-3)
    return flags


class Corpus:
    """A file of tokens, mapped into memory: noisy repeats of a short text, which can be learned."""

    def __init__(self, seed: int, tokens: int = 1 << 16) -> None:
        draw = np.random.default_rng(seed)
        text = np.resize(draw.integers(0, VOCABULARY, 97), tokens).astype(np.uint16)
        noise = draw.random(tokens) < 0.1
        text[noise] = draw.integers(0, VOCABULARY, int(noise.sum()))
        with tempfile.NamedTemporaryFile(suffix=".bin") as file:
            text.tofile(file.name)
            self.data = np.memmap(file.name, dtype=np.uint16, mode="r")

    def batch(self, size: int, length: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """`size` sequences and the same one token later."""
        starts = torch.randint(len(self.data) - length - 1, (size,), generator=draw).tolist()
        rows = np.stack([self.data[s : s + length + 1] for s in starts]).astype(np.int64)
        both = torch.from_numpy(rows)
        return both[:, :-1].contiguous(), both[:, 1:].contiguous()


def say(step: int, loss: float) -> None:
    """One line for each step."""
    print(f"step {step} loss {loss:.6f}", flush=True)


def finish(loss: float) -> None:
    """The last line."""
    print(f"final loss {loss:.9g}", flush=True)
    sys.stdout.flush()


def scratch(name: str) -> Path:
    """A folder for what a script writes, if its command line names none."""
    return Path(tempfile.gettempdir()) / f"jobs-{name}"
