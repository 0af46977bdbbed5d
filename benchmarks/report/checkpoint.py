"""Saves and loads beside torch.distributed.checkpoint, and beside a plain copy of the same bytes."""
import pathlib
import sys

from launch import Job, JobFailed, run
from row import Row, Sample, wanted

# Of the speed of a plain copy with fsync; of DCP's speed.
OF_COPY, OF_DCP = 0.9, 1.5
RANKS = 2


def milliseconds(found: dict, what: str) -> Sample | None:
    return Sample.of([1000 * seconds for seconds in found[what]]) if what in found else None


def checkpoint(bin_folder: str, peers: list[str], out: pathlib.Path, rounds: int, quick: bool) -> list[Row]:
    # Of the build folder's disk: /tmp may be memory.
    folder = out / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    options = ["--hidden", "256" if quick else "768", "--layers", "4", "--repeats", "3",
               "--folder", str(folder)]
    ours: dict = {}
    peer: dict = {}
    failure = ""
    for round_number in range(rounds):
        print(f"  checkpoints, round {round_number + 1}", file=sys.stderr)
        for all_of_them, command in ((ours, [f"{bin_folder}/bench_checkpoint"]), (peer, peers)):
            try:
                found = run(Job("checkpoint", [*command, *options], RANKS))
            except JobFailed as error:
                failure = str(error)
                continue
            for key, value in found.items():
                if isinstance(value, list):
                    all_of_them.setdefault(key, []).extend(value)
                else:
                    all_of_them[key] = value
    if "save" not in ours:
        return [Row("Checkpoints", "save", "ms", None, None, "", note=failure)]
    copy = milliseconds(ours, "copy")
    group = f"Checkpoints, {ours['bytes'] / 1e6:.0f} MB, {RANKS} ranks"

    def row(what: str, of_copy: float | None = None, target: float | None = None) -> Row:
        own = milliseconds(ours, what)
        notes = [f"{ours['bytes'] / own.median / 1e6:.2f} GB/s"]
        if of_copy:
            notes.append(wanted(own.median <= copy.median / of_copy, f"{of_copy} of the copy"))
        notes.append(f"{ours['peaks'][what] / 2**20:.0f} MB above what rank 0 held")
        if what in peer.get("peaks", {}):
            notes.append(f"DCP {peer['peaks'][what] / 2**20:.0f} MB")
        return Row(group, what, "ms", own, milliseconds(peer, what), "DCP", target=target,
                   note="; ".join(notes + [failure] * bool(failure)))

    plain = Row(group, "plain copy with fsync", "ms", copy, None, "",
                note=f"{ours['bytes'] / copy.median / 1e6:.2f} GB/s")
    return [plain, row("save", OF_COPY, OF_DCP), row("load", OF_COPY), row("stall"),
            row("asynchronous")]
