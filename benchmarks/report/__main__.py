"""Runs the benchmarks beside their peers; prints one table, writes it as JSON and as pictures.

    python benchmarks/report build/bin --out build/bench

Peers are run by the Python that runs this: one with torch and matplotlib (./dev bench makes it).
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import sys

import allocator
import checkpoint
import expected
import limit
import modes
import overhead
import pipeline
import plots
import recomputation
import sharded
import training
from row import table


def machine() -> str:
    model = "unknown processor"
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return f"{len(os.sched_getaffinity(0))} cores of {model}, {platform.system()}"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", help="folder of the built programs")
    parser.add_argument("--out", default="bench", help="folder for the results")
    parser.add_argument("--only", help="one of: collectives overhead tensor allocator sequence overlap data pipeline sharded memory modes recomputation autocast checkpoint exported planning expected limit")
    parser.add_argument("--rounds", type=int, default=3, help="launches of every job, in turn")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, one round")
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds
    here = pathlib.Path(__file__).parent.parent

    def peers(program: str) -> list[str]:
        return [sys.executable, str(here / "peers" / f"{program}.py")]


    parts = {
        "collectives": lambda: overhead.collectives(options.bin, options.quick),
        "overhead": lambda: overhead.overhead(options.bin, options.quick),
        "tensor": lambda: training.tensor_parallel(options.bin, peers("training_step"), rounds, options.quick),
        "allocator": lambda: allocator.allocator(options.bin, peers("training_step"), rounds, options.quick),
        "sequence": lambda: training.sequence_parallel(options.bin, peers("training_step"), rounds, options.quick),
        "overlap": lambda: training.overlap(options.bin, rounds, options.quick),
        "data": lambda: training.data_parallel(options.bin, peers("training_step"), rounds, options.quick),
        "pipeline": lambda: pipeline.pipeline(options.bin, peers("pipeline_step"), rounds, options.quick),
        "sharded": lambda: sharded.sharded(options.bin, peers("sharded_step"), rounds, options.quick),
        "memory": lambda: training.memory(options.bin, options.quick),
        "modes": lambda: modes.all_modes(options.bin, options.quick),
        "recomputation": lambda: recomputation.recomputation(options.bin, peers("recomputation"), rounds, options.quick),
        "autocast": lambda: recomputation.autocast(options.bin, peers("recomputation"), rounds, options.quick),
        "checkpoint": lambda: checkpoint.checkpoint(options.bin, peers("checkpoint"), pathlib.Path(options.out),
                                                    rounds, options.quick),
        "exported": lambda: overhead.exported(options.bin, options.quick),
        "planning": lambda: overhead.planning(options.bin, options.quick),
        "expected": lambda: expected.expected_steps(options.bin, rounds, options.quick),
        "limit": lambda: limit.limit(options.bin, rounds, options.quick),
    }
    if options.only and options.only not in parts:
        parser.error(f"--only {options.only}: choose from {' '.join(parts)}")
    rows = []
    for name, part in parts.items():
        if options.only in (None, name):
            rows += part()
    text = table(rows)
    heading = f"{datetime.date.today()}, {machine()}"
    print(f"\n{heading}\n\n{text}")
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "table.md").write_text(f"{heading}\n\n{text}")
    (out / "results.json").write_text(json.dumps(
        {"date": str(datetime.date.today()), "machine": machine(),
         "rows": [row.to_json() for row in rows]}, indent=1))
    pictures = plots.write(rows, out)
    print(f"written: {out}/table.md, results.json, {', '.join(pictures)}")


main()
