"""The twin of benchmarks/ranks/model.h: same names, same weights, same arithmetic."""
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.head_width = width // heads
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        # -1: under tensor parallelism a rank sees its own heads only.
        def by_head(y):
            return y.view(y.shape[0], y.shape[1], -1, self.head_width).transpose(1, 2)

        y = F.scaled_dot_product_attention(
            by_head(self.q(x)), by_head(self.k(x)), by_head(self.v(x)), is_causal=True
        )
        return self.proj(y.transpose(1, 2).contiguous().view(x.shape[0], x.shape[1], -1))


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.ln1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.ln2 = nn.LayerNorm(width)
        self.fc = nn.Linear(width, 4 * width)
        self.proj = nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.proj(F.gelu(self.fc(self.ln2(x))))


class Gpt(nn.Module):
    def __init__(self, vocabulary: int, positions: int, width: int, heads: int, layers: int,
                 tied: bool = True):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(positions, width)
        self.h = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.lnf = nn.LayerNorm(width)
        self.head = None if tied else nn.Linear(width, vocabulary, bias=False)
        self.fill()

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        return torch.matmul(self.lnf(x), (self.head or self.wte).weight.t())

    @torch.no_grad()
    def fill(self):
        for wave, (name, p) in enumerate(self.named_parameters(), start=1):
            if p.dim() == 2:
                place = torch.arange(p.numel(), dtype=torch.float64)
                p.copy_((0.1 * torch.sin(place * (0.7 + 0.01 * wave))).view(p.shape))
            elif name.endswith("bias"):
                p.zero_()
