"""Saves and loads with torch.distributed.checkpoint what benchmarks/ranks/checkpoint.cpp does: the
matrices of a GPT, cut in two ways, and AdamW's two moments of each.

    torchrun --nproc-per-node 2 checkpoint.py --folder /tmp/there

Rank 0 prints one line of JSON: seconds of each save, stall and load, bytes, peak memory.
"""
import argparse
import json
import os
import shutil
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from system_memory import forget_most, most_resident, resident
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh


def state_of(hidden: int, layers: int, mesh) -> dict:
    shapes = {}
    for layer in range(layers):
        for name in ("q", "k", "v"):
            shapes[f"h.{layer}.attn.{name}.weight"] = ((hidden, hidden), 0)
        shapes[f"h.{layer}.attn.proj.weight"] = ((hidden, hidden), 1)
        shapes[f"h.{layer}.fc.weight"] = ((4 * hidden, hidden), 0)
        shapes[f"h.{layer}.proj.weight"] = ((hidden, 4 * hidden), 1)
    state = {}
    for kind in ("model", "exp_avg", "exp_avg_sq"):
        state[kind] = {name: distribute_tensor(torch.randn(shape), mesh, [Shard(dim)])
                       for name, (shape, dim) in shapes.items()}
    return state


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    state = state_of(options.hidden, options.layers, mesh)
    elements = sum(tensor.numel() for part in state.values() for tensor in part.values())
    result = {"bytes": 4 * elements, "save": [], "stall": [], "asynchronous": [], "load": []}
    folder = os.path.join(options.folder, "dcp")

    def timed(what, call):
        dist.barrier()
        begin = time.perf_counter()
        value = call()
        dist.barrier()
        result[what].append(time.perf_counter() - begin)
        return value

    def clear():
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)
        dist.barrier()

    peaks = {}
    for _ in range(options.repeats):
        clear()
        held = resident()
        forget_most()
        timed("save", lambda: dcp.save(state, checkpoint_id=folder))
        peaks["save"] = max(peaks.get("save", 0), most_resident() - held)
        held = resident()
        forget_most()
        timed("load", lambda: dcp.load(state, checkpoint_id=folder))
        peaks["load"] = max(peaks.get("load", 0), most_resident() - held)
        clear()
        begin = time.perf_counter()
        pending = timed("stall", lambda: dcp.async_save(state, checkpoint_id=folder))
        pending.result()
        dist.barrier()
        result["asynchronous"].append(time.perf_counter() - begin)
    clear()
    result["peaks"] = peaks
    if dist.get_rank() == 0:
        print(json.dumps(result), flush=True)
    dist.destroy_process_group()


main()
