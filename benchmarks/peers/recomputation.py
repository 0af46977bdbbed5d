"""One rank in PyTorch whose blocks are computed again in backward: the twin of
benchmarks/ranks/recomputation.cpp, with the same options and the same line of JSON but for bytes."""
import argparse
import contextlib
import functools
import json

import torch
import torch.nn.functional as F
from model import Gpt
from rank_program import HEADS, POSITIONS, VOCABULARY, add_numbers, rows, timed_steps
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

aten = torch.ops.aten
KEPT = {aten.mm.default, aten.addmm.default, aten.bmm.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default}


def keep_products(context, op, *arguments, **named):
    return CheckpointPolicy.MUST_SAVE if op in KEPT else CheckpointPolicy.PREFER_RECOMPUTE


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--form", choices=["none", "whole", "selective"], default="none")
    parser.add_argument("--autocast", choices=["bfloat16", "float16"])
    add_numbers(parser, hidden=256, layers=4, batch=2, warm_up=3, steps=20)
    options = parser.parse_args()

    torch.set_num_threads(1)
    model = Gpt(VOCABULARY, POSITIONS, options.hidden, HEADS, options.layers)
    tokens, targets = rows(options.batch)
    at = torch.arange(tokens.shape[1])
    named = {"use_reentrant": False}
    if options.form == "whole":
        named["early_stop"] = False
    if options.form == "selective":
        named["context_fn"] = functools.partial(create_selective_checkpoint_contexts, keep_products)

    def precision():
        if options.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast("cpu", dtype=getattr(torch, options.autocast))

    def forward():
        with precision():
            x = model.wte(tokens) + model.wpe(at)
            for block in model.h:
                x = block(x) if options.form == "none" else checkpoint(block, x, **named)
            logits = torch.matmul(model.lnf(x), model.wte.weight.t())
            return F.cross_entropy(logits.view(-1, VOCABULARY), targets)

    def step():
        model.zero_grad()
        loss = forward()
        loss.backward()
        return loss

    result = {"loss": step().item(), "gradient": model.wte.weight.grad.abs().sum().item()}
    for _ in range(options.warm_up):
        step()
    result["milliseconds"] = timed_steps(options.steps, step)
    print(json.dumps(result), flush=True)


main()
