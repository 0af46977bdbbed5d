"""Steps with the memory that malloc keeps, as `oslo run` asks for it, beside malloc's defaults: ours,
the plain model and DTensor."""
import sys

from launch import Job
from row import Row
from training import Outcome, together

# In bytes, as glibc reads them (mpu/launch/malloc_settings.h).
KEPT = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32),
        "MALLOC_TOP_PAD_": str(2**26)}


def memory_of(outcome: Outcome) -> str:
    """Of rank 0 in the first launch: launches hardly differ in it."""
    found = outcome.results[0]
    return (f"{found['faults_a_step']:.0f} page faults a step, {found['resident'] / 2**20:.0f} MB "
            f"resident between steps, {found['resident_most'] / 2**20:.0f} at most")


def allocator(bin_folder: str, peers: list[str], rounds: int, quick: bool) -> list[Row]:
    rows = []
    program = f"{bin_folder}/bench_training_step"
    for hidden in (256,) if quick else (64, 256, 1024):
        print(f"  allocator: C = {hidden}", file=sys.stderr)
        size = ["--hidden", str(hidden), "--steps", "20" if hidden == 1024 else "40"]
        sides = {
            "the plain model, 1 rank": ([program, *size, "--parallel", "none"], 1, {}),
            "tensor parallel, 2 ranks, shared memory": ([program, *size], 2, {"OSLO_BACKEND": "shm"}),
            "DTensor over Gloo, 2 ranks": ([*peers, *size], 2, {}),
        }
        found = together([Job(f"{side}, {how}", command, ranks, environment | settings)
                          for side, (command, ranks, environment) in sides.items()
                          for how, settings in (("kept", KEPT), ("defaults", {}))], rounds)
        for side in sides:
            kept, defaults = found[f"{side}, kept"], found[f"{side}, defaults"]
            note = kept.failure or defaults.failure
            if kept.results and defaults.results:
                note = f"{memory_of(kept)}; by default {memory_of(defaults)}"
            rows.append(Row("A step whose freed memory malloc keeps", f"C = {hidden}, {side}", "ms",
                            kept.sample(), defaults.sample(), "malloc's defaults", note=note))
    return rows
