"""One rank of a pipeline in PyTorch: the twin of benchmarks/ranks/pipeline_step.cpp, with the same
options and the same line of JSON, by torch.distributed.pipelining. Ranks and address come from the
environment, as torchrun sets them."""
import argparse
import json

import torch
import torch.distributed as dist
import torch.nn.functional as F
from model import Gpt
from rank_program import HEADS, POSITIONS, VOCABULARY, add_numbers, rows, timed_steps
from torch import nn
from torch.distributed import pipelining

# By our kind: the schedule's class, and how many stages it gives a rank.
SCHEDULES = {
    "gpipe": ("ScheduleGPipe", 1),
    "1f1b": ("Schedule1F1B", 1),
    "interleaved": ("ScheduleInterleaved1F1B", 2),
    "zero_bubble": ("ScheduleInterleavedZeroBubble", 1),
    "zbv": ("ScheduleZBVZeroBubble", 2),
    "dualpipev": ("ScheduleDualPipeV", 2),
}
V_SHAPED = ("zbv", "dualpipev")


class Stage(nn.Module):
    """The layers of one stage: embeddings are on the first, norm and head on the last."""

    def __init__(self, model: Gpt, stage: int, stages: int):
        super().__init__()
        self.h = model.h[stage * len(model.h) // stages:(stage + 1) * len(model.h) // stages]
        self.wte, self.wpe = (model.wte, model.wpe) if stage == 0 else (None, None)
        self.lnf, self.head = (model.lnf, model.head) if stage == stages - 1 else (None, None)

    def forward(self, x):
        if self.wte is not None:
            x = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        for block in self.h:
            x = block(x)
        return x if self.lnf is None else torch.matmul(self.lnf(x), self.head.weight.t())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=SCHEDULES, default="1f1b")
    add_numbers(parser, hidden=64, layers=4, batch=16, micro_batches=8, warm_up=3, steps=10, recorded=0)
    options = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = Gpt(VOCABULARY, POSITIONS, options.hidden, HEADS, options.layers, tied=False)
    name, chunks = SCHEDULES[options.kind]
    number = chunks * ranks
    rank_of_stage = [min(stage, number - 1 - stage) if options.kind in V_SHAPED else stage % ranks
                     for stage in range(number)]
    stages = [pipelining.PipelineStage(Stage(model, stage, number), stage, number, torch.device("cpu"))
              for stage in range(number) if rank_of_stage[stage] == rank]
    last_rank = rank_of_stage[-1]
    if options.kind in V_SHAPED:
        # Connections are tried out first. A rank with two neighbouring stages would send to itself,
        # which Gloo cannot, and has no need of.
        for stage in stages:
            stage._get_init_p2p_neighbors_ops = list
    schedule_class = getattr(pipelining, name)
    takes_several = issubclass(schedule_class, pipelining.schedules.PipelineScheduleMulti)
    schedule = schedule_class(
        stages if takes_several else stages[0], options.micro_batches,
        loss_fn=lambda y, target: F.cross_entropy(y.view(-1, VOCABULARY), target.view(-1)))
    tokens, targets = rows(options.batch)
    targets = targets.view_as(tokens)  # micro-batches are cut off both
    # Parameters of other stages are dropped, as ours are.
    del model
    parameters = [p for stage in stages for p in stage.submod.parameters()]

    def step():
        for p in parameters:
            p.grad = None
        losses = []
        schedule.step(*([tokens] if rank == 0 else []),
                      **({"target": targets, "losses": losses} if rank == last_rank else {}))
        return losses

    losses = step()
    loss = torch.stack(losses).mean().detach() if losses else torch.zeros(())
    dist.broadcast(loss, last_rank)
    result = {"loss": loss.item()}
    if rank == 0:
        result["gradient"] = stages[0].submod.wte.weight.grad.abs().sum().item()
    for _ in range(options.warm_up):
        step()
    result["milliseconds"] = timed_steps(options.steps, step, dist.barrier)
    if rank == 0:
        print(json.dumps(result), flush=True)
    dist.destroy_process_group()


main()
