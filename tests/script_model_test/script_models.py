#!/usr/bin/env python3
"""Writes what tests/script_model_test reads: `<name>.pt`, TorchScript modules as torch.jit.save leaves
them, and `lm.bin`, five steps of AdamW in Python, as tests/exported_model_test/export_models.py has
them.

    python tests/script_model_test/script_models.py tests/data/script

needs PyTorch 2.11 and takes some seconds. Everything is computed in double. Sizes divide by nothing.
"""
import pathlib
import sys
import warnings

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "exported_model_test"))
from export_models import batches_of, cross_entropy, train  # noqa: E402

WORDS, WIDTH, HEADS, ROWS, TIME = 37, 12, 3, 6, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = HEADS
        self.ln_1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.ln_2 = nn.LayerNorm(WIDTH)
        self.fc = nn.Linear(WIDTH, 4 * WIDTH)
        self.out = nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        b, t, c = x.size(0), x.size(1), x.size(2)
        q, k, v = self.qkv(self.ln_1(x)).chunk(3, 2)
        q = q.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        k = k.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        v = v.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.proj(y.transpose(1, 2).reshape(b, t, c)))
        return x + self.drop(self.out(F.gelu(self.fc(self.ln_2(x)))))


class Lm(nn.Module):
    """Tied, with a loop over its blocks, and two buffers, one of which forward writes into."""

    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(WORDS, WIDTH)
        self.wpe = nn.Embedding(TIME, WIDTH)
        self.h = nn.ModuleList([Block() for _ in range(2)])
        self.ln_f = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)
        self.lm_head.weight = self.wte.weight
        self.register_buffer("gain", torch.tensor(1.5))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, tokens):
        self.calls.add_(1)
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x)) * self.gain


class Counter(nn.Module):
    """Replaces its buffer, which nobody but the script sees."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.calls = self.calls + 1
        return self.layer(x)


class GraphNet(nn.Module):
    """Means of what neighbours send; traced, so that sizes are operators of its graph."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(5, 14)
        self.mix = nn.Linear(14, 14, bias=False)
        self.norm = nn.LayerNorm(14)
        self.out = nn.Linear(14, 3)

    def forward(self, x, edge):
        h = torch.relu(self.up(x))
        sent = self.mix(h).index_select(0, edge[0])
        total = torch.zeros_like(h).index_add_(0, edge[1], sent)
        ones = torch.ones(edge.size(1), 1)
        count = torch.zeros(x.size(0), 1).index_add_(0, edge[1], ones).clamp_min(1)
        return self.out(self.norm(h + total / count))


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = Lm().train()
    torch.jit.script(model).save(folder / "lm.pt")
    torch.jit.freeze(torch.jit.script(nn.Linear(3, 2).eval())).save(folder / "frozen.pt")
    torch.jit.script(Counter()).save(folder / "counter.pt")
    edge = torch.stack([torch.arange(23) * 5 % 9, (torch.arange(23) * 7 + 2) % 9])
    torch.jit.trace(GraphNet(), (torch.randn(9, 5), edge)).save(folder / "graph.pt")
    model.eval()  # ranks that are threads share a generator, and cannot draw alike
    batches = batches_of(lambda g: ((torch.randint(WORDS, (ROWS, TIME), generator=g),),
                                    torch.randint(WORDS, (ROWS, TIME), generator=g)))
    train(model, batches, cross_entropy, folder / "lm.bin")


if __name__ == "__main__":
    main()
