"""Steps of a GPT whose weights data ranks keep parts of, beside PyTorch's FSDP2 (wall time, time of the
processor, and memory), and with one copy of the weights on the host beside plain DDP. All with the memory
that `oslo run` keeps."""
import sys

from allocator import KEPT as KEPT_MEMORY
from launch import Job
from row import Row, Sample
from training import TRANSPORTS, together

GROUP = "A step with weights in parts, 2 ranks"
# FSDP2's time / ours.
TARGETS = {"gloo": {64: 1.0, 256: 1.0, 1024: 1.0}, "shm": {64: 5.0, 256: 2.0, 1024: 1.2}}


def taken(outcome, most: str = "resident_most") -> Sample | None:
    """Megabytes at most, above what there was before the model."""
    values = [(result[most] - result["resident_before"]) / 2**20 for result in outcome.results]
    return Sample.of(values) if values else None


def processor(outcome) -> Sample | None:
    values = [result["processor"] for result in outcome.results]
    return Sample.of(values) if values else None


def sharded(bin_folder: str, peers: list[str], rounds: int, quick: bool) -> list[Row]:
    rows = []
    peer_name = "FSDP2 over Gloo"
    for hidden in (64, 256) if quick else (64, 256, 1024):
        print(f"  sharded: C = {hidden}", file=sys.stderr)
        options = ["--hidden", str(hidden), "--warm-up", "3", "--steps", "6" if hidden == 1024 else "20"]
        program = [f"{bin_folder}/bench_sharded_step", *options]
        gathered = [*program, "--set", "zero_optimization.copies_per_host=0"]
        jobs = [Job(transport, gathered, 2, KEPT_MEMORY | {"OSLO_BACKEND": transport})
                for transport in TRANSPORTS]
        shared = KEPT_MEMORY | {"OSLO_BACKEND": "shm"}
        one_copy = Job("one copy", [*program, "--set", "zero_optimization.copies_per_host=1"], 2, shared)
        plain = Job("plain", [*program, "--plain"], 2, shared)
        found = together([*jobs, one_copy, plain, Job("peer", [*peers, *options], 2, KEPT_MEMORY)], rounds)
        peer = found["peer"]
        for job in jobs:
            ours = found[job.name]
            what = f"C = {hidden}, {TRANSPORTS[job.name]}"
            note = ours.failure or peer.failure
            rows.append(Row(GROUP, what, "ms", ours.sample(), peer.sample(), peer_name,
                            target=TARGETS[job.name][hidden], note=note))
            rows.append(Row(GROUP, f"{what}, processor", "ms", processor(ours), processor(peer), peer_name))
            rows.append(Row(GROUP, f"{what}, memory at most", "MB", taken(ours), taken(peer), peer_name,
                            target=1.0))
        ours, ddp = found["one copy"], found["plain"]
        what = f"C = {hidden}, one copy on the host"
        note = ours.failure or ddp.failure
        rows.append(Row(GROUP, what, "ms", ours.sample(), ddp.sample(), "DDP, nothing in parts",
                        target=round(1 / 1.02, 3), note=note))
        rows.append(Row(GROUP, f"{what}, processor", "ms", processor(ours), processor(ddp),
                        "DDP, nothing in parts"))
        # What the config asks for where it says nothing of copies.
        rows.append(Row(GROUP, f"{what}, beside FSDP2", "ms", ours.sample(), peer.sample(), peer_name,
                        target=TARGETS["shm"][hidden], note=ours.failure or peer.failure))
        rows.append(Row(GROUP, f"{what}, memory at most", "MB", taken(ours), taken(peer), peer_name,
                        target=1.0))
    return rows
