"""The limit of a tensor parallel step: a plain model of the sizes that a rank has of each layer, on
both ranks at once, each by itself; and the same model, rewritten for tensor parallelism by hand."""
import sys

from allocator import KEPT
from launch import Job
from row import Row
from training import Outcome, together

# Ours takes at most so many times as long as the plain model, from issue 29.
WITHIN = {64: 1.25, 256: 1.08, 1024: 1.04}


def times(mine: Outcome, its: Outcome) -> str:
    by_launch = sorted(a.median / b.median for a, b in zip(mine.samples(), its.samples()))
    return (f"{mine.sample().median / its.sample().median:.2f} of its time, by launches in turn "
            f"{by_launch[0]:.2f} to {by_launch[-1]:.2f}")


def limit(bin_folder: str, rounds: int, quick: bool) -> list[Row]:
    rows = []
    for hidden in (64,) if quick else (64, 256, 1024):
        print(f"  limit: C = {hidden}", file=sys.stderr)
        sizes = ["--hidden", str(hidden), "--warm-up", "20",
                 "--steps", "30" if hidden == 1024 else "200"]
        environment = {"OSLO_BACKEND": "shm"} | KEPT
        step = f"{bin_folder}/bench_training_step"
        found = together([Job("ours", [step, *sizes, "--words"], 2, environment),
                          Job("limit", [step, *sizes, "--parallel", "none", "--parts", "2"], 2,
                              environment),
                          Job("by hand", [f"{bin_folder}/bench_tensor_by_hand", *sizes], 2,
                              environment)],
                         rounds, alike=("ours", "by hand"))
        ours, plain, by_hand = found["ours"], found["limit"], found["by hand"]
        group = "A tensor parallel step beside a plain model of a rank's own sizes, 2 ranks"
        what = f"C = {hidden}, shared memory"
        note = ours.failure or plain.failure
        rows.append(Row(group, what, "ms", ours.sample(), plain.sample(),
                        "the plain model of a rank's sizes", target=round(1 / WITHIN[hidden], 3),
                        note=note or times(ours, plain)))
        note = ours.failure or by_hand.failure
        if not note:
            note = times(ours, by_hand)
            if not plain.failure:
                note += f"; by hand beside the plain model: {times(by_hand, plain)}"
        rows.append(Row(group, what, "ms", ours.sample(), by_hand.sample(),
                        "tensor parallel by hand", note=note))
    return rows
