"""Blocks that are computed again in backward, beside torch.utils.checkpoint, and autocast beside
Python's."""
import sys

from launch import Job
from row import Row
from training import together

# A step's time over that of a step which keeps everything, at most; and bytes kept over its bytes.
TIME = {"whole": 1.40, "needed": 1.40, "selective": 1.06}
KEPT = {"selective": 0.5}
# What torch.utils.checkpoint calls a form that it does not have.
PEER_FORM = {"needed": "whole"}


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
        jobs = [Job(form, [program, *options_of(hidden, form)], 1) for form in forms]
        jobs += [Job(f"peer {form}", [*peers, *options_of(hidden, form)], 1)
                 for form in ("none", "whole", "selective")]
        found = together(jobs, rounds)
        plain = found["none"]
        for form in forms:
            ours, peer = found[form], found[f"peer {PEER_FORM.get(form, form)}"]
            notes = [note for note in (ours.failure, peer.failure) if note]
            if form != "none" and ours.results and plain.results:
                time = ours.sample().median / plain.sample().median
                kept = ours.results[0]["kept"] / plain.results[0]["kept"]
                most = ours.results[0]["most"] / plain.results[0]["most"]
                notes.append(f"{'met' if time <= TIME[form] else 'MISSED'}: {time:.2f} of a plain "
                             f"step, {TIME[form]:g} wanted")
                notes.append(f"{kept:.2f} of its bytes kept, {most:.2f} of its peak")
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
        found = together([Job("ours", [f"{bin_folder}/bench_recomputation", *options], 1),
                          Job("peer", [*peers, *options], 1)], rounds)
        rows.append(Row("A step under autocast, bfloat16, one rank", f"C = {hidden}", "ms",
                        found["ours"].sample(), found["peer"].sample(), "Python's autocast",
                        note=found["ours"].failure or found["peer"].failure))
    return rows
