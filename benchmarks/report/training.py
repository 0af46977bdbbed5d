"""Training steps against PyTorch's: tensor parallel against DTensor, data parallel against DDP."""
import sys
from dataclasses import dataclass, field

from launch import Job, JobFailed, run
from row import Row, Sample

TRANSPORTS = {"gloo": "Gloo", "shm": "shared memory"}
# Peer / ours, from the issue that brought this benchmark.
TENSOR_TARGETS = {"gloo": {64: 2.0, 256: 1.5, 1024: 1.0}, "shm": {64: 10.0, 256: 3.0, 1024: 1.3}}
DATA_TARGETS = {"gloo": {64: 1.0, 256: 1.0}, "shm": {64: 1.5, 256: None}}


@dataclass
class Outcome:
    """What came of a job's launches."""

    results: list[dict] = field(default_factory=list)
    failure: str = ""

    def all_of(self, key: str) -> list[float]:
        return [value for result in self.results for value in result[key]]

    def sample(self, key: str = "milliseconds") -> Sample | None:
        values = self.all_of(key)
        return Sample.of(values) if values else None

    def samples(self, key: str = "milliseconds") -> list[Sample]:
        """One for each launch."""
        return [Sample.of(result[key]) for result in self.results]


def together(jobs: list[Job], rounds: int, seconds: float = 300,
             alike: tuple[str, ...] | None = None) -> dict[str, Outcome]:
    """Every job `rounds` times, in turn, each within `seconds`; equal losses and gradients of those
    named `alike`, which are all unless told, are asserted before any time counts."""
    outcomes = {job.name: Outcome() for job in jobs}
    first: dict = {}
    for _ in range(rounds):
        for job in jobs:
            outcome = outcomes[job.name]
            if outcome.failure:
                continue
            try:
                result = run(job, seconds)
            except JobFailed as failure:
                outcome.failure = str(failure)
                print(f"    {job.name}: {failure}", file=sys.stderr)
                continue
            compared = alike is None or job.name in alike
            if compared:
                first = first or result
            for key in ("loss", "gradient") if compared else ():
                if abs(result[key] - first[key]) > 1e-3 * abs(first[key]):
                    raise SystemExit(
                        f"{job.name}: {key} {result[key]} is not the others' {first[key]}")
            outcome.results.append(result)
    return outcomes


def compare(bin_folder: str, peers: list[str], what: str, options: list[str], rounds: int,
            group: str, peer_name: str, targets: dict[str, float | None], ranks: int) -> list[Row]:
    print(f"  {group}: {what}", file=sys.stderr)
    ours = [Job(transport, [f"{bin_folder}/bench_training_step", *options], ranks,
                {"OSLO_BACKEND": transport}) for transport in TRANSPORTS]
    peer = Job("peer", [*peers, *options], ranks)
    found = together([*ours, peer], rounds)
    rows = []
    for job in ours:
        outcome = found[job.name]
        rows.append(Row(group, f"{what}, {TRANSPORTS[job.name]}", "ms", outcome.sample(),
                        found["peer"].sample(), peer_name, target=targets.get(job.name),
                        note=outcome.failure or found["peer"].failure,
                        extra={"losses": [result["loss"] for result in outcome.results]}))
    return rows


def tensor_parallel(bin_folder, peers, rounds, quick):
    rows = []
    for hidden in (64, 256) if quick else (64, 256, 1024):
        rows += compare(bin_folder, peers, f"C = {hidden}",
                        ["--parallel", "tensor", "--hidden", str(hidden),
                         "--steps", "20" if hidden == 1024 else "40"],
                        rounds, "A tensor parallel step, 2 ranks", "DTensor over Gloo",
                        {t: TENSOR_TARGETS[t][hidden] for t in TRANSPORTS}, 2)
    return rows


def sequence_parallel(bin_folder, peers, rounds, quick):
    """Steps with the stream between layers cut along the sequence, beside tensor parallel ones and
    DTensor's."""
    rows = []
    for hidden in (256,) if quick else (256, 1024):
        print(f"  sequence: C = {hidden}", file=sys.stderr)
        command = [f"{bin_folder}/bench_training_step", "--hidden", str(hidden),
                   "--steps", "20" if hidden == 1024 else "40"]
        found = together([Job(how, [*command, "--parallel", how], 2, {"OSLO_BACKEND": "shm"})
                          for how in ("sequence", "tensor")], rounds)
        rows.append(Row("A tensor parallel step with its stream cut along the sequence, 2 ranks",
                        f"C = {hidden}, shared memory", "ms", found["sequence"].sample(),
                        found["tensor"].sample(), "tensor parallel", target=round(1 / 1.03, 2),
                        note=found["sequence"].failure or found["tensor"].failure))
        rows += compare(bin_folder, peers, f"C = {hidden}", [*command[1:], "--parallel", "sequence"],
                        rounds, "A step with its stream cut along the sequence, 2 ranks",
                        "DTensor's SequenceParallel over Gloo", {}, 2)
    return rows


def data_parallel(bin_folder, peers, rounds, quick):
    rows = []
    for hidden in (64, 256):
        for overlap, bucket in (("overlap", 1), ("no overlap", 1000)):
            rows += compare(bin_folder, peers, f"C = {hidden}, {overlap}",
                            ["--parallel", "data", "--hidden", str(hidden),
                             "--bucket-mb", str(bucket)],
                            rounds, "A data parallel step, 2 ranks", "PyTorch DDP over Gloo",
                            {t: DATA_TARGETS[t][hidden] for t in TRANSPORTS}, 2)
    return rows


def overlap(bin_folder, rounds, quick):
    """Steps whose backward starts the collectives of column layers before the products of their
    weights' gradients, beside steps that do one after the other."""
    rows = []
    for hidden in (256,) if quick else (64, 256, 1024):
        print(f"  overlap: C = {hidden}", file=sys.stderr)
        command = [f"{bin_folder}/bench_training_step", "--hidden", str(hidden),
                   "--steps", "20" if hidden == 1024 else "40"]
        found = together([Job(how, [*command, "--overlap", how], 2, {"OSLO_BACKEND": "shm"})
                          for how in ("on", "off")], rounds)
        rows.append(Row("A tensor parallel step with collectives started early, 2 ranks",
                        f"C = {hidden}, shared memory", "ms", found["on"].sample(),
                        found["off"].sample(), "one after the other",
                        note=found["on"].failure or found["off"].failure))
    return rows


def memory(bin_folder, quick):
    """What a rank holds between steps (weights, gradients, AdamW's moments) beside the formula."""
    rows = []
    for hidden in (256,) if quick else (256, 1024):
        for ranks in (1, 2, 4):
            print(f"  memory: C = {hidden}, {ranks} ranks", file=sys.stderr)
            found = run(Job("memory", [f"{bin_folder}/bench_memory", "--hidden", str(hidden)], ranks))
            held, formula = found["held"] / 2**20, found["formula"] / 2**20
            rows.append(Row("Memory a rank, tensor parallel", f"C = {hidden}, {ranks} rank{'s' * (ranks > 1)}", "MB",
                            Sample.of([held]), Sample.of([formula]), "the formula", target=0.97,
                            note=f"{found['most'] / 2**20:.1f} MB at most in a step"))
    return rows + pipeline_memory(bin_folder, quick)


def pipeline_memory(bin_folder, quick):
    """The peak of resident memory in a step, of the rank that takes most, beside one stage's."""
    rows, one_stage = [], None
    hidden = 256 if quick else 512
    for stages in (1, 2, 4):
        print(f"  memory: C = {hidden}, pipeline {stages}", file=sys.stderr)
        found = run(Job("pipeline_memory", [f"{bin_folder}/bench_pipeline_memory", "--hidden", str(hidden)], stages))
        most = Sample.of([found["most"] / 2**20])
        rows.append(Row("Resident memory of a rank, pipeline", f"C = {hidden}, 8 layers, pipeline {stages}", "MB",
                        most, one_stage, "one stage" if one_stage else "-",
                        note=f"{found['held'] / 2**20:.0f} MB between steps; weights, gradients and "
                             f"moments are {found['formula'] / 2**20:.0f} MB"))
        one_stage = one_stage or most
    return rows
