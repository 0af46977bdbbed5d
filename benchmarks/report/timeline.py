"""What runs beside what in the backward pass of a step that `bench_training_step --trace` wrote.

    python benchmarks/report/timeline.py step.0.json [--svg FILE]

Prints how long collectives took, and how much of that while the gradient of a linear layer's weight
was computed; --svg draws the stretch around the product with the most of it. For CPU ranks: of a
GPU, ui.perfetto.dev shows the streams.
"""
import argparse
import json
import pathlib
from dataclasses import dataclass
from xml.sax.saxutils import escape

PRODUCT, COLLECTIVES = "OsloLinearWeightBackward", ("shm:", "gloo:")
STARTS, WAITS = ("OsloCopyBackward", "OsloGatherAndCopyBackward"), "OsloStartedBackward"
NODES = ("OsloLinear", *STARTS, WAITS)
COLORS = {"OsloLinearBackward": "#6d93bd", PRODUCT: "#2a6fb0"}
WIDTH, ROW, LEFT = 900, 34, 130


@dataclass(frozen=True)
class Range:
    name: str
    begin: float  # microseconds
    end: float

    def beside(self, other: "Range") -> float:
        """Microseconds of both at a time."""
        return max(0.0, min(self.end, other.end) - max(self.begin, other.begin))

    def is_collective(self) -> bool:
        return self.name.startswith(COLLECTIVES)


def read(file: pathlib.Path) -> list[Range]:
    """The nodes of linear layers and their collectives, by begin."""
    found = [Range(event["name"], event["ts"], event["ts"] + event["dur"])
             for event in json.loads(file.read_text())["traceEvents"]
             if event.get("ph") == "X" and event.get("name", "").startswith((*NODES, *COLLECTIVES))]
    return sorted(found, key=lambda each: each.begin)


def draw(ranges: list[Range], product: Range) -> str:
    """From the node that starts the collective beside `product` to the one that waits for it."""
    nodes = [each for each in ranges if not each.is_collective()]
    first = max((each.begin for each in nodes
                 if each.begin < product.begin and each.name.startswith(STARTS)), default=product.begin)
    last = min((each.end for each in nodes
                if each.begin > product.begin and each.name.startswith(WAITS)), default=product.end)
    rows = {"computes": nodes, "communicates": [each for each in ranges if each.is_collective()]}
    scale, height = (WIDTH - LEFT - 10) / (last - first), ROW * (len(rows) + 1)
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
             'font-family="sans-serif" font-size="11">',
             f'<rect width="{WIDTH}" height="{height}" fill="white"/>']
    for row, (title, of_row) in enumerate(rows.items()):
        y = row * ROW + 6
        lines.append(f'<text x="6" y="{y + 15}">{title}</text>')
        for each in of_row:
            if each.end <= first or each.begin >= last:
                continue
            x = LEFT + (max(each.begin, first) - first) * scale
            width = max(1.0, (min(each.end, last) - max(each.begin, first)) * scale)
            color = "#c8553d" if each.is_collective() else COLORS.get(each.name, "#9a9a9a")
            text = f"{each.name}, {each.end - each.begin:.0f} us"
            lines.append(f'<g><title>{escape(text)}</title><rect x="{x:.1f}" y="{y}" '
                         f'width="{width:.1f}" height="{ROW - 12}" fill="{color}" stroke="white"/>')
            if width > 6.2 * len(text):
                lines.append(f'<text x="{x + 4:.1f}" y="{y + 15}" fill="white">{escape(text)}</text>')
            lines.append("</g>")
    lines.append(f'<text x="{LEFT}" y="{height - 12}">{last - first:.0f} us</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("--svg", type=pathlib.Path, help="write a picture")
    options = parser.parse_args()
    ranges = read(options.trace)
    products = [each for each in ranges if each.name == PRODUCT]
    collectives = [each for each in ranges if each.is_collective()]
    if not products:
        raise SystemExit(f"{options.trace}: no {PRODUCT} in it; bench_training_step --parallel tensor "
                         "--trace writes one that has")
    beside = {product: sum(product.beside(each) for each in collectives) for product in products}
    taken = sum(each.end - each.begin for each in collectives)
    print(f"{len(collectives)} collectives, {taken / 1e3:.2f} ms; {sum(beside.values()) / 1e3:.2f} ms of it "
          f"while the gradient of one of {len(products)} weights was computed")
    if options.svg:
        options.svg.write_text(draw(ranges, max(products, key=beside.get)))


main()
