"""Every way to cut layers and sequences on one GPT: time, memory and bytes beside the formulas."""
import json
import sys
from dataclasses import dataclass

from launch import Job, JobFailed, run
from row import Row, Sample

LAYERS, VOCABULARY, POSITIONS, BATCH = 4, 512, 64, 4


@dataclass
class Mode:
    """A config; into how many parts it cuts layers' weights, and what moves in a step."""

    name: str
    ranks: int
    config: dict
    parts: int
    elements: callable  # of all ranks, by the number of tokens m and the width c

    def weights(self, c: int) -> float:
        """Elements of a rank: layers, and the table that is the head; the rest is whole."""
        layers = LAYERS * 12 * c * c + VOCABULARY * c
        return layers / self.parts + LAYERS * 13 * c + 2 * c + POSITIONS * c


def linear_layers(of_layer):
    """Of the products of every block: queries, keys, values, their projection, and the two behind."""
    def elements(m, c):
        block = 4 * of_layer(m, c, c) + of_layer(m, c, 4 * c) + of_layer(m, 4 * c, c)
        return LAYERS * block
    return elements


def over_context(p, of_attention):
    """Attention's own, and one all-reduce of every weight's gradient."""
    return lambda m, c: LAYERS * of_attention(m * c) + 2 * (p - 1) * LAYERS * 12 * c * c


def tensor(size, mode, **more):
    return {"parallel": {"tensor": {"size": size, "mode": mode, **more}}}


def modes() -> list[Mode]:
    p, q, d = 4, 2, 2
    stream = lambda m, c: 8 * (p - 1) * m * c * LAYERS
    context = {"context_parallel_size": p}
    return [
        Mode("one device", 1, {}, 1, lambda m, c: 0),
        Mode("tensor", p, tensor(p, "1d"), p, stream),
        Mode("tensor, sequence parallel", p, tensor(p, "1d") | {"sequence_parallel": True}, p, stream),
        Mode("context, gather", p, context | {"context_attention": "gather"}, 1,
             over_context(p, lambda mc: 4 * (p - 1) * mc)),
        Mode("context, ulysses", p, context | {"context_attention": "ulysses"}, 1,
             over_context(p, lambda mc: 8 * (p - 1) * mc / p)),
        Mode("context, ring", p, context | {"context_attention": "ring"}, 1,
             over_context(p, lambda mc: (4 * (p - 1) + 2 * p) * mc)),
        Mode("context, ring, head and tail", p,
             context | {"context_attention": "ring", "context_order": "head_tail"}, 1,
             over_context(p, lambda mc: (4 * (p - 1) + 2 * p) * mc)),
        Mode("2d", q * q, tensor(q * q, "2d"), q * q,
             linear_layers(lambda m, k, n: 3 * (q - 1) * (m * k + k * n))),
        Mode("2.5d", q * q * d, tensor(q * q * d, "2.5d", depth=d), q * q,
             linear_layers(lambda m, k, n: 3 * (q - 1) * (m * k + d * k * n) + 2 * (d - 1) * k * n)),
        Mode("3d", q ** 3, tensor(q ** 3, "3d"), q ** 3,
             linear_layers(lambda m, k, n: 2 * (q - 1) * (m * k + k * n + m * n))),
    ]


def all_modes(bin_folder: str, quick: bool) -> list[Row]:
    c = 64 if quick else 256
    m = BATCH * POSITIONS
    times, held, moved = [], [], []
    one_device = None
    first_loss = None
    for mode in modes():
        print(f"  modes: {mode.name}", file=sys.stderr)
        what = f"{mode.name}, {mode.ranks} rank{'s' * (mode.ranks > 1)}"
        command = [f"{bin_folder}/bench_modes", "--config", json.dumps(mode.config), "--hidden", str(c),
                   "--batch", str(BATCH), "--positions", str(POSITIONS), "--steps", "10" if quick else "20"]
        try:
            found = run(Job(mode.name, command, mode.ranks, {"OSLO_BACKEND": "shm"}))
        except JobFailed as failure:
            times.append(Row("A step of each mode", what, "ms", None, None, "-", note=str(failure)))
            continue
        first_loss = first_loss or found["loss"]
        if abs(found["loss"] - first_loss) > 1e-4 * first_loss:
            raise SystemExit(f"{mode.name}: loss {found['loss']} is not the others' {first_loss}")
        one_device = one_device or Sample.of(found["milliseconds"])
        times.append(Row("A step of each mode", what, "ms", Sample.of(found["milliseconds"]), one_device,
                         "one device"))
        mega = lambda value: Sample.of([value / 2**20])
        held.append(Row("Memory a rank, each mode", what, "MB", mega(found["held"]), mega(16 * mode.weights(c)),
                        "the formula", note=f"{(found['most'] - found['held']) / 2**20:.1f} MB more in a step"))
        if mode.ranks > 1:
            formula = 4 * mode.elements(m, c) / mode.ranks
            moved.append(Row("Bytes a rank receives in a step, each mode", what, "MB",
                             mega(4 * found["received"]), mega(formula), "blocks' formula"))
    return times + held + moved
