"""What our own programs measure by themselves."""
import json
import subprocess
import sys

from launch import run_google_benchmark
from row import Row, Sample, wanted


def aggregates(entries: list[dict]) -> dict[str, dict[str, dict]]:
    """benchmark name -> aggregate name -> entry."""
    found: dict[str, dict[str, dict]] = {}
    for entry in entries:
        found.setdefault(entry["run_name"], {})[entry["aggregate_name"]] = entry
    return found


def repeated(of: dict[str, dict]) -> Sample:
    """Google Benchmark gives no percentiles: 1.28 standard deviations hold four fifths."""
    middle, spread = of["median"]["real_time"], 1.28 * of["stddev"]["real_time"]
    return Sample(middle, middle - spread, middle + spread)


def turns(entry: dict, side: str, unit: float = 1) -> Sample:
    """One side's counters of a benchmark that takes turns, which are in microseconds."""
    return Sample(*(entry[f"{side}{percentile}"] * unit for percentile in ("", "_p10", "_p90")))


def overhead(bin_folder: str, quick: bool) -> list[Row]:
    options = ["--benchmark_filter=add|gelu"] if quick else []
    group = "Overhead, 1 rank"
    rows = []
    for entry in run_google_benchmark(f"{bin_folder}/bench_overhead", *options):
        name, *parameters = entry["run_name"].split("/")
        if name == "training_step":
            ratio = entry["ratio"]
            rows.append(Row(group, "training step of a model after initialize", "ms",
                            turns(entry, "ours", 1e-3), turns(entry, "plain", 1e-3),
                            "the untouched model",
                            note=f"{ratio:.3f} of its time, {wanted(ratio <= 1.01, '1.01')}"))
            continue
        more = entry["more"]
        with_grad = ", with gradient" if "grad:1" in parameters else ""
        rows.append(Row(group, f"{name} on a cut value{with_grad}", "us", turns(entry, "ours"),
                        turns(entry, "plain"), "the plain operator",
                        note=f"{more:+.2f} us, {wanted(more <= 0.5, '0.5 us')}"))
    return rows


def exported(bin_folder: str, quick: bool) -> list[Row]:
    options = ["--benchmark_filter=step"] if quick else []
    rows = []
    for entry in run_google_benchmark(f"{bin_folder}/bench_exported", *options):
        where, part, batch = entry["run_name"].split("/")[:3]
        ranks = "rank 0 of 2" if where == "cut" else "1 rank"
        ratio = turns(entry, "ratio")
        verdict = wanted(ratio.median <= 1.1, "1.1") if part == "step" else ""
        rows.append(Row("A model of load_exported", f"{part}, {batch.replace(':', ' ')}, {ranks}", "us",
                        turns(entry, "ours"), turns(entry, "plain"), "the same in C++",
                        note=f"{ratio.median:.3f} of its time [{ratio.p10:.3f}, {ratio.p90:.3f}]"
                             + (f", {verdict}" if verdict else "")))
    return rows


def planning(bin_folder: str, quick: bool) -> list[Row]:
    options = ["--benchmark_repetitions=3"]
    if quick:
        options.append("--benchmark_filter=layers:12")
    rows = []
    for name, of in aggregates(run_google_benchmark(f"{bin_folder}/bench_planning", *options)).items():
        median = of["median"]
        note = f"+{median['rss_mb']:.0f} MB, {median['runs']:.0f} dry runs" if "runs" in median else ""
        rows.append(Row("Planning", name.removeprefix("plan_gpt2/"), "ms", repeated(of), None, "-",
                        note=note))
    return rows


def size_name(size: int) -> str:
    for unit, name in ((1 << 20, "MB"), (1 << 10, "KB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


# Gloo / ours, and microseconds, from the issue that brought shared memory; two ranks.
COLLECTIVE_TARGETS = {64: (100.0, 6.0), 32 << 10: (None, 15.0), 4 << 20: (8.0, 450.0)}


def collectives(bin_folder: str, quick: bool) -> list[Row]:
    print("  bench_collectives", file=sys.stderr)
    command = [f"{bin_folder}/bench_collectives", "--json"]
    if quick:
        command.append(f"--largest={4 << 20}")
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    rows = []
    for line in done.stdout.splitlines():
        found = json.loads(line)
        ratio, microseconds = COLLECTIVE_TARGETS.get(found["bytes"], (None, None))
        if found["ranks"] > 2:  # on fewer cores than ranks
            ratio, microseconds = None, microseconds and 5 * microseconds
        rows.append(Row("All-reduce in shared memory", f"{size_name(found['bytes'])}, {found['ranks']} ranks",
                        "us", *(Sample(found[side + "_us"], found[side + "_p10"], found[side + "_p90"])
                                for side in ("shm", "gloo")),
                        "Gloo", target=ratio, limit=microseconds))
    return rows
