#!/usr/bin/env python3
"""Writes what tests/exported_model_test reads: for each model `<name>.pt2`, the exported program, and
`<name>.bin`, five steps of AdamW in Python: the batches, the losses, the outputs of an evaluation
behind them, and then the weights and buffers.

    python tests/exported_model_test/export_models.py tests/data/exported

needs PyTorch 2.11 and takes some seconds. Everything is computed in double, so that only the order of
sums may differ. Sizes divide by nothing.
"""
import copy
import pathlib
import sys

import torch
import torch.nn.functional as F
from torch import nn

STEPS, BATCH = 5, 6


class Mlp(nn.Module):
    """Dictionaries in and out, dropout, a number made of a size, no_grad, buffers of both kinds."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(7, 11)
        self.drop = nn.Dropout(0.25)
        self.down = nn.Linear(11, 5, bias=False)
        self.gain = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 7), persistent=False)

    def forward(self, batch, shift=None):
        self.calls.add_(1)
        x = batch["x"] * self.scale + batch["bias"] * 2
        with torch.no_grad():
            mean = x.mean(0)
        h = self.drop(F.gelu(self.up(x - mean)))
        pairs = h.view(h.size(0) * 11).view(-1, 11)
        y = self.down(pairs) * self.gain * torch.tensor([2.0, 1.0, 1.0, 1.0, 0.5])
        return {"logits": y, "hidden": (h, x.size(0)), "nothing": None}


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 9, 3, stride=2, groups=3), nn.BatchNorm2d(9, eps=1e-4, momentum=0.3),
            nn.SiLU(),
            nn.Conv2d(9, 10, 1), nn.GroupNorm(5, 10))
        self.head = nn.Linear(10, 4)

    def forward(self, x):
        return self.head(F.adaptive_avg_pool2d(self.features(x), 1).flatten(1))


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x, mask):
        b, t, c = x.shape
        q, k, v = (part.view(b, t, self.heads, c // self.heads).transpose(1, 2)
                   for part in self.c_attn(x).split(c, 2))
        scores = (q @ k.transpose(-2, -1)) * (c // self.heads) ** -0.5
        y = scores.masked_fill(mask[:t, :t].logical_not(), float("-inf")).softmax(-1) @ v
        return self.c_proj(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, 4 * width),
                                  "c_proj": nn.Linear(4 * width, width)})

    def forward(self, x, mask):
        x = x + self.attn(self.ln_1(x), mask)
        return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """The head is the table; the mask is a buffer that Python does not save."""

    def __init__(self, words=37, width=12, heads=3, length=8, layers=2):
        super().__init__()
        self.wte = nn.Embedding(words, width)
        self.wpe = nn.Embedding(length, width)
        self.h = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, words, bias=False)
        self.lm_head.weight = self.wte.weight
        self.register_buffer("mask", torch.ones(length, length, dtype=torch.bool).tril(),
                             persistent=False)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.h:
            x = block(x, self.mask)
        return self.lm_head(self.ln_f(x))


class EncoderLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 20), nn.GELU(), nn.Linear(20, width))

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Vit(nn.Module):
    def __init__(self, width=12, heads=3, layers=2):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.class_token = nn.Parameter(torch.randn(1, 1, width) * 0.1)
        self.positions = nn.Parameter(torch.randn(1, 5, width) * 0.1)
        self.layers = nn.ModuleList([EncoderLayer(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 7)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.size(0), -1, -1), x], 1) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x[:, 0]))


class Mixed(nn.Module):
    """Half in bfloat16, with a part inside that autocast is off for; a weight that has a gradient as
    a factor only, and not where it is looked at."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(7, 11, dtype=torch.float32)
        self.down = nn.Linear(11, 5, dtype=torch.float32)

    def forward(self, x):
        with torch.no_grad():
            largest = self.down.weight.abs().amax()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = F.gelu(self.up(x))
            with torch.autocast("cpu", enabled=False):
                return self.down(h.float()) / largest


class Twice(nn.Module):
    """A norm and a layer that are called twice, the norm of the whole batch first and then of what a
    layer gave; a matrix and a vector that have two names and no layer."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.mix = nn.Linear(6, 6)
        self.up = nn.Parameter(torch.randn(11, 6) * 0.3)
        self.gain = nn.Parameter(torch.randn(6))
        self.down = self.up
        self.again = nn.ParameterDict({"gain": self.gain})

    def forward(self, x):
        x = self.norm(torch.tanh(self.mix(self.norm(x))))
        x = F.linear(F.relu(F.linear(x * self.gain, self.up)), self.down.t())
        return self.mix(x) * self.again["gain"]


class DropPath(nn.Module):
    """Stochastic depth as timm and transformers have it: it asks `training`, and no operator says so."""

    def __init__(self, share):
        super().__init__()
        self.share = share

    def forward(self, x):
        if not self.training:
            return x
        keep = 1 - self.share
        return x * x.new_empty(x.size(0), 1, 1).bernoulli_(keep).div_(keep)


class DepthBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 20), nn.GELU(), nn.Dropout(0.1),
                                 nn.Linear(20, width))
        self.drop_path = DropPath(0.4)

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.drop_path(self.attn(y, y, y, need_weights=False)[0])
        return x + self.drop_path(self.mlp(self.norm2(x)))


class Depth(nn.Module):
    """Stochastic depth, and a head of training only."""

    def __init__(self, width=12, heads=3):
        super().__init__()
        self.patches = nn.Linear(6, width)
        self.blocks = nn.ModuleList([DepthBlock(width, heads)])
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, 7)
        self.aside = nn.Linear(width, 7)
        self.register_buffer("shift", torch.linspace(-0.1, 0.1, 12), persistent=False)

    def forward(self, x):
        x = self.patches(x) + self.shift
        for block in self.blocks:
            x = block(x)
        x = self.norm(x.mean(1))
        if self.training:
            return self.head(x) + 0.3 * self.aside(x)
        return self.head(x)


def flat_outputs(output):
    leaves = torch.utils._pytree.tree_leaves(output)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def mean_square(outputs, target):
    return F.mse_loss(outputs[0], target)


def cross_entropy(outputs, target):
    return F.cross_entropy(outputs[0].flatten(0, -2), target.flatten())


def batches_of(draw):
    return [draw(torch.Generator().manual_seed(100 + step)) for step in range(STEPS)]


# name: the model; a batch (what forward takes, and the target); the loss; the sizes that change.
MODELS = {
    "mlp": (Mlp,
            lambda g: (({"x": torch.randn(BATCH, 7, generator=g),
                         "bias": torch.randn(7, generator=g)},), torch.randn(BATCH, 5, generator=g)),
            mean_square, lambda b: ({"x": {0: b}, "bias": None},)),
    "conv": (ConvNet,
             lambda g: ((torch.randn(BATCH, 3, 8, 8, generator=g),),
                        torch.randint(4, (BATCH,), generator=g)),
             cross_entropy, lambda b: ({0: b},)),
    "gpt2": (Gpt2,
             lambda g: ((torch.randint(37, (BATCH, 6), generator=g),),
                        torch.randint(37, (BATCH, 6), generator=g)),
             cross_entropy, lambda b: ({0: b},)),
    "vit": (Vit,
            lambda g: ((torch.randn(BATCH, 3, 8, 8, generator=g),),
                       torch.randint(7, (BATCH,), generator=g)),
            cross_entropy, lambda b: ({0: b},)),
    "twice": (Twice,
              lambda g: ((torch.randn(BATCH, 6, generator=g),), torch.randn(BATCH, 6, generator=g)),
              mean_square, None),
    "depth": (Depth,
              lambda g: ((torch.randn(BATCH, 5, 6, generator=g),),
                         torch.randint(7, (BATCH,), generator=g)),
              cross_entropy, lambda b: ({0: b},)),
    # The roundings of bfloat16 are those of a CPU: compared with what the same one gave, and not kept.
    "mixed": (Mixed,
              lambda g: ((torch.randn(BATCH, 7, generator=g, dtype=torch.float32),),
                         torch.randn(BATCH, 5, generator=g, dtype=torch.float32)),
              mean_square, lambda b: ({0: b},)),
}


def called_with(arguments):
    """Arguments by position and by name: a tuple is the former, a dictionary the latter."""
    return ((), arguments) if isinstance(arguments, dict) else (arguments, {})


def export(model, arguments, dynamic_shapes, path):
    args, kwargs = called_with(arguments)
    program = torch.export.export(model, args, kwargs, dynamic_shapes=dynamic_shapes)
    for module in program.graph_module.modules():  # where each line of Python lies on this machine
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            for key in ("stack_trace", "torch_fn"):
                node.meta.pop(key, None)
    torch.export.save(program, path)


def train(model, batches, loss_of, path):
    told = {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    torch.manual_seed(5)
    for step, (arguments, target) in enumerate(batches):
        optimizer.zero_grad()
        args, kwargs = called_with(arguments)
        loss = loss_of(flat_outputs(model(*args, **kwargs)), target)
        loss.backward()
        optimizer.step()
        for i, argument in enumerate(torch.utils._pytree.tree_leaves(arguments)):
            told[f"step{step}.input{i}"] = argument
        told[f"step{step}.target"] = target
        told[f"step{step}.loss"] = loss.detach()
    model.eval()
    args, kwargs = called_with(batches[0][0])
    with torch.no_grad():
        for i, output in enumerate(flat_outputs(model(*args, **kwargs))):
            told[f"evaluation{i}"] = output
    for key, value in model.state_dict().items():
        told[f"state.{key}"] = value
    torch.save({key: value.clone() for key, value in told.items()}, path)


def write(name, folder):
    make, draw, loss_of, dynamic = MODELS[name]
    torch.manual_seed(3)
    model = make().train()
    batches = batches_of(draw)
    export(model, batches[0][0], dynamic and dynamic(torch.export.Dim("batch", min=1, max=64)),
           folder / f"{name}.pt2")
    train(copy.deepcopy(model), batches, loss_of, folder / f"{name}.bin")
    if name == "depth":  # the same in evaluation, in a file of its own; and how it trains there
        model.eval()
        export(model, batches[0][0], dynamic(torch.export.Dim("batch", min=1, max=64)),
               folder / "depth_evaluation.pt2")
        train(model, batches, loss_of, folder / "depth_still.bin")
    if name == "mlp":  # ranks that are threads share a generator, and cannot draw alike
        model.drop.eval()
        train(model, batches, loss_of, folder / "mlp_without_dropout.bin")


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    for name in MODELS:
        write(name, folder)
    # A program that says nothing of training.
    torch.manual_seed(3)
    evaluated = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5)).eval()
    export(evaluated, (torch.ones(2, 3),), None, folder / "evaluated.pt2")


if __name__ == "__main__":
    main()
