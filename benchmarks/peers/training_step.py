"""One rank of a training job in PyTorch: the twin of benchmarks/ranks/training_step.cpp, with the
same options and the same line of JSON. Ranks and address come from the environment, as torchrun
sets them."""
import argparse
import json
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from model import Gpt


def tensor_parallel(model, ranks: int):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (ranks,))
    column, row = ColwiseParallel, RowwiseParallel
    for block in model.h:
        plan = {"attn.q": column(), "attn.k": column(), "attn.v": column(), "attn.proj": row(),
                "fc": column(), "proj": row()}
        parallelize_module(block, mesh, plan)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parallel", choices=["tensor", "data", "none"], default="tensor")
    for name, default in {"hidden": 64, "layers": 4, "batch": 2, "warm-up": 5, "steps": 40}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--bucket-mb", type=float, default=25)
    options = parser.parse_args()
    heads, positions, vocabulary = 4, 64, 512

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = Gpt(vocabulary, positions, options.hidden, heads, options.layers)
    called = model
    if options.parallel == "tensor":
        called = tensor_parallel(model, ranks)
    elif options.parallel == "data":
        called = torch.nn.parallel.DistributedDataParallel(
            model, bucket_cap_mb=options.bucket_mb, gradient_as_bucket_view=False
        )
    shift = rank if options.parallel == "data" else 0
    place = torch.arange(options.batch * positions) * 7 + shift
    tokens = place.remainder(vocabulary).view(options.batch, positions)
    targets = (place + 3).remainder(vocabulary)

    def step():
        model.zero_grad()
        loss = F.cross_entropy(called(tokens).view(-1, vocabulary), targets)
        loss.backward()
        return loss

    result = {"loss": step().item(), "gradient": model.wte.weight.grad.abs().sum().item()}
    for _ in range(options.warm_up):
        step()
    milliseconds = []
    for _ in range(options.steps):
        dist.barrier()
        start = time.perf_counter()
        step()
        milliseconds.append((time.perf_counter() - start) * 1e3)
    result["milliseconds"] = milliseconds
    if rank == 0:
        print(json.dumps(result), flush=True)
    dist.destroy_process_group()


main()
