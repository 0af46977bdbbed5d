"""Blocks that are computed again in backward, beside torch.utils.checkpoint, and autocast beside
Python's. Both sides with the memory that `oslo run` keeps: malloc's defaults give pages back to the
system between steps, by chance more of one side's than of the other's."""
import sys

from allocator import KEPT as KEPT_MEMORY
from launch import Job
from row import Row, Sample
from training import together

# A step's time over that of a step which keeps everything, at most; and bytes kept over its bytes.
TIME = {"whole": 1.40, "needed": 1.40, "selective": 1.06, "half": 1.06}
KEPT = {"half": 0.5}
# What torch.utils.checkpoint has in place of a form that it does not have.
PEER_FORM = {"needed": "whole", "half": "selective"}


def options_of(hidden: int, form: str, autocast: str = "") -> list[str]:
    steps = "8" if hidden == 1024 else "20"
    chosen = ["--hidden", str(hidden), "--steps", steps, "--form", form]
    return chosen + (["--autocast", autocast] if autocast else [])


def recomputation(bin_folder: str, peers: list[str], rounds: int, quick: bool) -> list[Row]:
    rows = []
    program = f"{bin_folder}/bench_recomputation"
    forms = ["none", *TIME]
    for hidden in (256,) if quick else (64, 256, 1024):
        print(f"  recomputation: C = {hidden}", file=sys.stderr)
        turns = {form: [] if form == "none" else ["--beside", "none"] for form in forms}
        jobs = [Job(form, [program, *options_of(hidden, form), *turns[form]], 1, KEPT_MEMORY)
                for form in forms]
        jobs += [Job(f"peer {form}", [*peers, *options_of(hidden, form)], 1, KEPT_MEMORY)
                 for form in ("none", "whole", "selective")]
        found = together(jobs, rounds)
        plain = found["none"]
        for form in forms:
            ours, peer = found[form], found[f"peer {PEER_FORM.get(form, form)}"]
            notes = [note for note in (ours.failure, peer.failure) if note]
            if form != "none" and ours.results and plain.results:
                time = Sample.of([own / beside for own, beside in zip(
                    ours.all_of("milliseconds"), ours.all_of("beside"))])
                kept = ours.results[0]["kept_by_blocks"] / plain.results[0]["kept_by_blocks"]
                most = ours.results[0]["most"] / plain.results[0]["most"]
                notes.append(f"{'met' if time.median <= TIME[form] else 'MISSED'}: "
                             f"{time.median:.2f} of a plain step in turn, {TIME[form]:g} wanted")
                notes.append(f"{kept:.2f} of its blocks' bytes kept, {most:.2f} of its peak")
                if form in KEPT:
                    notes.append(f"{'met' if kept <= KEPT[form] else 'MISSED'}: {KEPT[form]:g} wanted")
            rows.append(Row("Blocks computed again in backward, one rank", f"C = {hidden}, {form}",
                            "ms", ours.sample(), peer.sample(), "torch.utils.checkpoint",
                            target=1.0 if form != "none" else None, note="; ".join(notes)))
    return rows


def autocast(bin_folder: str, peers: list[str], rounds: int, quick: bool) -> list[Row]:
    rows = []
    for hidden in (256,) if quick else (256, 1024):
        print(f"  autocast: C = {hidden}", file=sys.stderr)
        options = options_of(hidden, "none", "bfloat16")
        found = together([Job("ours", [f"{bin_folder}/bench_recomputation", *options], 1,
                              KEPT_MEMORY),
                          Job("peer", [*peers, *options], 1, KEPT_MEMORY)], rounds)
        rows.append(Row("A step under autocast, bfloat16, one rank", f"C = {hidden}", "ms",
                        found["ours"].sample(), found["peer"].sample(), "Python's autocast",
                        note=found["ours"].failure or found["peer"].failure))
    return rows
