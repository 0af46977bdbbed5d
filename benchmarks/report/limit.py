"""The limit of a tensor parallel step: a plain model of the sizes that a rank has of each layer, on
both ranks at once, each by itself."""
import sys

from allocator import KEPT
from launch import Job
from row import Row
from training import together

# Ours takes at most so many times as long, from issue 29.
WITHIN = {64: 1.25, 256: 1.08, 1024: 1.04}


def limit(bin_folder: str, rounds: int, quick: bool) -> list[Row]:
    rows = []
    for hidden in (64,) if quick else (64, 256, 1024):
        print(f"  limit: C = {hidden}", file=sys.stderr)
        command = [f"{bin_folder}/bench_training_step", "--hidden", str(hidden), "--warm-up", "20",
                   "--steps", "30" if hidden == 1024 else "200"]
        environment = {"OSLO_BACKEND": "shm"} | KEPT
        found = together([Job("ours", [*command, "--words"], 2, environment),
                          Job("limit", [*command, "--parallel", "none", "--parts", "2"], 2, environment)],
                         rounds, alike=False)
        ours, plain = found["ours"], found["limit"]
        note = ours.failure or plain.failure
        if not note:
            by_launch = sorted(mine.median / its.median for mine, its in
                               zip(ours.samples(), plain.samples()))
            note = (f"{ours.sample().median / plain.sample().median:.2f} of its time, by pairs of "
                    f"launches {by_launch[0]:.2f} to {by_launch[-1]:.2f}")
        rows.append(Row("A tensor parallel step beside a plain model of a rank's own sizes, 2 ranks",
                        f"C = {hidden}, shared memory", "ms", ours.sample(), plain.sample(),
                        "the plain model of a rank's sizes", target=round(1 / WITHIN[hidden], 3),
                        note=note))
    return rows
