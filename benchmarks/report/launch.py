"""Starts the ranks of a job on this host and reads what rank 0 prints."""
import json
import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field


@dataclass
class Job:
    """One side of a comparison."""

    name: str
    command: list[str]
    ranks: int = 2
    environment: dict[str, str] = field(default_factory=dict)


class JobFailed(Exception):
    pass


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def pin_to(core: int):
    return lambda: os.sched_setaffinity(0, {core})


def run(job: Job, seconds: float = 300) -> dict:
    """The JSON that rank 0 prints as its last line. Ranks find each other as under torchrun; each
    has one thread, and a core of its own as far as there are enough."""
    cores = sorted(os.sched_getaffinity(0))
    base = os.environ | job.environment
    base |= {"OMP_NUM_THREADS": "1", "WORLD_SIZE": str(job.ranks), "MASTER_ADDR": "127.0.0.1",
             "LOCAL_WORLD_SIZE": str(job.ranks), "MASTER_PORT": str(free_port())}
    processes, outputs = [], []
    try:
        for rank in range(job.ranks):
            output = tempfile.TemporaryFile("w+")
            outputs.append(output)
            processes.append(subprocess.Popen(
                job.command, stdout=output, stderr=subprocess.STDOUT,
                env=base | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                preexec_fn=pin_to(cores[rank % len(cores)])))
        for process in processes:
            process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise JobFailed(f"did not finish in {seconds:.0f} s") from None
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    texts = []
    for output in outputs:
        output.seek(0)
        texts.append(output.read())
    for rank, process in enumerate(processes):
        if process.returncode != 0:
            last = texts[rank].strip().splitlines()[-1:] or ["no output"]
            raise JobFailed(f"rank {rank} ended with {process.returncode}: {last[0]}")
    lines = [line for line in texts[0].splitlines() if line.startswith("{")]
    if not lines:
        raise JobFailed("printed no result")
    return json.loads(lines[-1])


def run_google_benchmark(program: str, *options: str) -> list[dict]:
    """The entries of a Google Benchmark program; of one that repeats, its aggregates."""
    command = [program, "--benchmark_format=json", "--benchmark_report_aggregates_only=true", *options]
    print(f"  {os.path.basename(program)}", file=sys.stderr)
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return json.loads(done.stdout)["benchmarks"]
