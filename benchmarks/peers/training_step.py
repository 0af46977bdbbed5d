"""One rank of a training job in PyTorch: the twin of benchmarks/ranks/training_step.cpp, with the
same options and the same line of JSON. Ranks and address come from the environment, as torchrun
sets them."""
import argparse
import json
import resource

import torch
import torch.distributed as dist
import torch.nn.functional as F
from model import Gpt
from rank_program import HEADS, POSITIONS, VOCABULARY, add_numbers, rows, timed_steps
from system_memory import resident


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


def sequence_parallel(model, ranks: int):
    """The stream between layers cut along the sequence, as PyTorch's tutorial of SequenceParallel
    has it; table and head stay whole, as in `tensor_parallel`."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        PrepareModuleOutput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (ranks,))
    column, stream, whole = ColwiseParallel, Shard(1), Replicate()
    for block in model.h:
        plan = {"ln1": SequenceParallel(), "ln2": SequenceParallel(),
                "attn": PrepareModuleInput(input_layouts=(stream,), desired_input_layouts=(whole,)),
                "attn.q": column(), "attn.k": column(), "attn.v": column(),
                "attn.proj": RowwiseParallel(output_layouts=stream, use_local_output=False),
                "fc": column(input_layouts=stream),
                "proj": RowwiseParallel(output_layouts=stream, use_local_output=False)}
        parallelize_module(block, mesh, plan)
    parallelize_module(model.h[0], mesh, PrepareModuleInput(
        input_layouts=(whole,), desired_input_layouts=(stream,)))
    parallelize_module(model, mesh, {"lnf": SequenceParallel()})
    parallelize_module(model.lnf, mesh, PrepareModuleOutput(
        output_layouts=stream, desired_output_layouts=whole))
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parallel", choices=["tensor", "sequence", "data", "none"], default="tensor")
    add_numbers(parser, hidden=64, layers=4, batch=2, warm_up=5, steps=40)
    parser.add_argument("--bucket-mb", type=float, default=25)
    options = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = Gpt(VOCABULARY, POSITIONS, options.hidden, HEADS, options.layers)
    called = model
    if options.parallel == "tensor":
        called = tensor_parallel(model, ranks)
    elif options.parallel == "sequence":
        called = sequence_parallel(model, ranks)
    elif options.parallel == "data":
        called = torch.nn.parallel.DistributedDataParallel(
            model, bucket_cap_mb=options.bucket_mb, gradient_as_bucket_view=False
        )
    shift = rank if options.parallel == "data" else 0
    tokens, targets = rows(options.batch, shift)

    def step():
        model.zero_grad()
        loss = F.cross_entropy(called(tokens).view(-1, VOCABULARY), targets)
        loss.backward()
        return loss

    result = {"loss": step().item(), "gradient": model.wte.weight.grad.abs().sum().item()}
    for _ in range(options.warm_up):
        step()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    result["milliseconds"] = timed_steps(options.steps, step, dist.barrier)
    used = resource.getrusage(resource.RUSAGE_SELF)
    result["faults_a_step"] = (used.ru_minflt - faults) / options.steps
    result["resident"] = resident()
    result["resident_most"] = used.ru_maxrss * 1024
    if rank == 0:
        print(json.dumps(result), flush=True)
    dist.destroy_process_group()


main()
