"""One rank of a training job under PyTorch's FSDP2: the twin of benchmarks/ranks/sharded_step.cpp,
with the same options and the same line of JSON. Each block is wrapped, and then the model, as
PyTorch's tutorial has it. Ranks and address come from the environment, as torchrun sets them."""
import argparse
import json
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from model import Gpt
from rank_program import HEADS, POSITIONS, VOCABULARY, add_numbers, rows, timed_steps
from system_memory import forget_most, most_resident, resident
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    add_numbers(parser, hidden=64, layers=4, batch=2, warm_up=5, steps=40)
    options = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    before = resident()
    model = Gpt(VOCABULARY, POSITIONS, options.hidden, HEADS, options.layers)
    mesh = init_device_mesh("cpu", (ranks,))
    for block in model.h:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens, targets = rows(options.batch, shift=rank)

    def step():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens).view(-1, VOCABULARY), targets)
        loss.backward()
        optimizer.step()
        return loss

    result = {"loss": step().item()}
    gradient = model.wte.weight.grad.full_tensor()
    result["gradient"] = gradient.abs().sum().item()
    result["losses"] = [step().item() for _ in range(options.warm_up)]
    forget_most()
    used = time.process_time()
    result["milliseconds"] = timed_steps(options.steps, step, dist.barrier)
    result["processor"] = (time.process_time() - used) / options.steps * 1e3
    result["resident"] = resident()
    result["resident_most"] = most_resident()
    result["resident_before"] = before
    if rank == 0:
        print(json.dumps(result), flush=True)
    dist.destroy_process_group()


main()
