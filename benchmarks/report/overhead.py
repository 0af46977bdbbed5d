"""What our own programs measure by themselves: pairs within one run."""
import json
import subprocess
import sys

from launch import run_google_benchmark
from row import Row, Sample, wanted

INTERLEAVED = ["--benchmark_enable_random_interleaving=true", "--benchmark_repetitions=15"]


def aggregates(entries: list[dict]) -> dict[str, dict[str, dict]]:
    """benchmark name -> aggregate name -> entry."""
    found: dict[str, dict[str, dict]] = {}
    for entry in entries:
        found.setdefault(entry["run_name"], {})[entry["aggregate_name"]] = entry
    return found


def sample(of: dict[str, dict], unit: float, key: str = "cpu_time") -> Sample:
    """Google Benchmark gives no percentiles: 1.28 standard deviations hold four fifths. Processor
    time: these run on one thread, and others use the machine."""
    middle, spread = of["median"][key] * unit, 1.28 * of["stddev"][key] * unit
    return Sample(middle, middle - spread, middle + spread)


def overhead(bin_folder: str, quick: bool) -> list[Row]:
    options = INTERLEAVED + (["--benchmark_min_time=0.05"] if quick else [])
    found = aggregates(run_google_benchmark(f"{bin_folder}/bench_overhead", *options))
    group = "Overhead, 1 rank"
    rows = []
    for plain, cut in (("plain_add", "cut_add"), ("plain_gelu", "cut_gelu")):
        for grad, with_grad in ((0, ""), (1, ", with gradient")):
            ours, peer = found[f"{cut}/grad:{grad}"], found[f"{plain}/grad:{grad}"]
            more = (ours["median"]["cpu_time"] - peer["median"]["cpu_time"]) / 1e3
            rows.append(Row(group, f"{plain[6:]} on a cut value{with_grad}", "us",
                            sample(ours, 1e-3), sample(peer, 1e-3), "the plain operator",
                            note=f"{more:+.2f} us, {wanted(more <= 0.5, '0.5 us')}"))
    ours, peer = found["training_step/world_of_one"], found["training_step/plain"]
    rows.append(Row(group, "training step of a model after initialize", "ms",
                    sample(ours, 1), sample(peer, 1), "the untouched model", target=0.99))
    return rows


def planning(bin_folder: str, quick: bool) -> list[Row]:
    options = ["--benchmark_repetitions=3"]
    if quick:
        options.append("--benchmark_filter=layers:12")
    rows = []
    for name, of in aggregates(run_google_benchmark(f"{bin_folder}/bench_planning", *options)).items():
        median = of["median"]
        rows.append(Row("Planning", name.removeprefix("plan_gpt2/"), "ms", sample(of, 1, "real_time"), None, "-",
                        note=f"+{median['rss_mb']:.0f} MB, {median['runs']:.0f} dry runs"))
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
