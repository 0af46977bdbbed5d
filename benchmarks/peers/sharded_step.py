"""One rank of a training job under PyTorch's FSDP2: the twin of benchmarks/ranks/sharded_step.cpp,
with the same options and the same line of JSON. Each block is wrapped, and then the model, as
PyTorch's tutorial has it. Ranks and address come from the environment, as torchrun sets them."""
import argparse
import json
import resource
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from model import Gpt
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def forget_most():
    """The peak that the kernel knows of begins anew."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def most_resident() -> int:
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    raise SystemExit("no VmHWM in /proc/self/status")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in {"hidden": 64, "layers": 4, "batch": 2, "warm-up": 5, "steps": 40}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    heads, positions, vocabulary = 4, 64, 512

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    before = resident()
    model = Gpt(vocabulary, positions, options.hidden, heads, options.layers)
    mesh = init_device_mesh("cpu", (ranks,))
    for block in model.h:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    place = torch.arange(options.batch * positions) * 7 + rank
    tokens = place.remainder(vocabulary).view(options.batch, positions)
    targets = (place + 3).remainder(vocabulary)

    def step():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens).view(-1, vocabulary), targets)
        loss.backward()
        optimizer.step()
        return loss

    result = {"loss": step().item()}
    gradient = model.wte.weight.grad.full_tensor()
    result["gradient"] = gradient.abs().sum().item()
    result["losses"] = [step().item() for _ in range(options.warm_up)]
    milliseconds = []
    forget_most()
    used = time.process_time()
    for _ in range(options.steps):
        dist.barrier()
        start = time.perf_counter()
        step()
        milliseconds.append((time.perf_counter() - start) * 1e3)
    result["milliseconds"] = milliseconds
    result["processor"] = (time.process_time() - used) / options.steps * 1e3
    result["resident"] = resident()
    result["resident_most"] = most_resident()
    result["resident_before"] = before
    if rank == 0:
        print(json.dumps(result), flush=True)
    dist.destroy_process_group()


main()
