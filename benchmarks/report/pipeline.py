"""Steps of a pipeline against Python's torch.distributed.pipelining, and what recorded steps show."""
import sys

from launch import Job
from row import Row, Sample, wanted
from training import TRANSPORTS, Outcome, together

# Our kinds, and the peer's schedule beside each (benchmarks/peers/pipeline_step.py).
KINDS = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B", "interleaved": "ScheduleInterleaved1F1B",
         "zero_bubble": "ScheduleInterleavedZeroBubble", "zbv": "ScheduleZBVZeroBubble",
         "dualpipev": "ScheduleDualPipeV"}
# Peer / ours, from the issue that brought pipelines.
TARGETS = {"1f1b": 1.2}
# A measured bubble differs from the simulated one by less than this part of it, and operators of
# other stages take less than this part of a step, where computing is most of it.
WITHIN, FOREIGN = 0.1, 0.03
COMPUTE_DOMINATES = 1024
# Whose ranks have a stage each, as bench_pipeline_step takes for granted in this share.
FOREIGN_KINDS = ("gpipe", "1f1b", "zero_bubble")
# Of one launch of either side.
SECONDS = 90


def percent(values: list[float]) -> Sample | None:
    return Sample.of([100 * value for value in values]) if values else None


def steps(bin_folder: str, peers: list[str], rounds: int, quick: bool) -> list[Row]:
    rows = []
    for hidden in (256,) if quick else (64, 256):
        for kind, peer_name in KINDS.items():
            for micro_batches in (8,) if quick else (4, 8, 16):
                what = f"{kind}, m = {micro_batches}, C = {hidden}"
                print(f"  a pipeline step: {what}", file=sys.stderr)
                options = ["--kind", kind, "--hidden", str(hidden),
                           "--micro-batches", str(micro_batches), "--recorded", "0"]
                ours = [Job(transport, [f"{bin_folder}/bench_pipeline_step", *options], 2,
                            {"OSLO_BACKEND": transport}) for transport in TRANSPORTS]
                found = together([*ours, Job("peer", [*peers, *options])], rounds, SECONDS)
                for job in ours:
                    outcome = found[job.name]
                    rows.append(Row(
                        "A pipeline step, 2 ranks", f"{what}, {TRANSPORTS[job.name]}", "ms",
                        outcome.sample(), found["peer"].sample(), f"{peer_name} over Gloo",
                        target=TARGETS.get(kind), note=outcome.failure or found["peer"].failure))
    return rows


def recorded(bin_folder: str, rounds: int, quick: bool) -> list[Row]:
    """Measured bubbles beside what the lists make of the measured passes, and what the forward's
    operators of other stages take."""
    bubbles, foreign = [], []
    for hidden in (256,) if quick else (256, 1024):
        for kind in KINDS:
            what = f"{kind}, m = 8, C = {hidden}"
            print(f"  a recorded step: {what}", file=sys.stderr)
            options = ["--kind", kind, "--hidden", str(hidden), "--micro-batches", "8",
                       "--warm-up", "1", "--steps", "1",
                       *(["--batch", "8", "--recorded", "4"] if hidden == 1024 else
                         ["--batch", "16", "--recorded", "15"])]
            jobs = [Job(transport, [f"{bin_folder}/bench_pipeline_step", *options], 2,
                        {"OSLO_BACKEND": transport}) for transport in TRANSPORTS]
            found = together(jobs, rounds, SECONDS)
            for job in jobs:
                name = f"{what}, {TRANSPORTS[job.name]}"
                bubble, share = rows_of(name, kind, found[job.name], hidden >= COMPUTE_DOMINATES)
                bubbles.append(bubble)
                foreign += [share] if share else []
    return bubbles + foreign


def rows_of(what: str, kind: str, outcome: Outcome, judged: bool) -> tuple[Row, Row | None]:
    measured = percent(outcome.all_of("measured"))
    simulated = percent(outcome.all_of("simulated"))
    note = outcome.failure
    if judged and measured is not None:
        off = measured.median / simulated.median - 1
        note = f"{100 * off:+.0f} %, {wanted(abs(off) <= WITHIN, f'{100 * WITHIN:.0f} %')}"
    bubble = Row("A bubble as recorded and as simulated, 2 ranks", what, "%", measured, simulated,
                 "simulated", note=note)
    if measured is None or kind not in FOREIGN_KINDS:
        return bubble, None
    return bubble, Row("What other stages' operators take of a step, 2 ranks", what, "%",
                       percent(outcome.all_of("foreign")), None, "-",
                       limit=100 * FOREIGN if judged else None)


def pipeline(bin_folder: str, peers: list[str], rounds: int, quick: bool) -> list[Row]:
    return steps(bin_folder, peers, rounds, quick) + recorded(bin_folder, rounds, quick)
