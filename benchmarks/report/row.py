"""One line of the table: ours beside a peer."""
from dataclasses import asdict, dataclass, field


def percentile(sorted_values: list[float], fraction: float) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(fraction * len(sorted_values)))]


def wanted(met: bool, what: str) -> str:
    """Every verdict of the table."""
    return f"{'met' if met else 'MISSED'}: {what} wanted"


@dataclass
class Sample:
    """What one side measured, in `unit`."""

    median: float
    p10: float
    p90: float

    @staticmethod
    def of(values: list[float]) -> "Sample":
        ordered = sorted(values)
        return Sample(percentile(ordered, 0.5), percentile(ordered, 0.1), percentile(ordered, 0.9))


@dataclass
class Row:
    group: str
    what: str
    unit: str
    ours: Sample | None
    peer: Sample | None
    peer_name: str
    target: float | None = None  # peer / ours at least
    limit: float | None = None  # ours at most, in `unit`
    note: str = ""
    extra: dict = field(default_factory=dict)

    def ratio(self) -> float | None:
        if self.ours is None or self.peer is None or self.ours.median == 0 or self.unit == "%":
            return None
        return self.peer.median / self.ours.median

    def verdict(self) -> str:
        parts = []
        ratio = self.ratio()
        if self.target is not None and ratio is not None:
            parts.append(wanted(ratio >= self.target, f"{self.target:g}x"))
        if self.limit is not None and self.ours is not None:
            parts.append(wanted(self.ours.median <= self.limit, f"{self.limit:g} {self.unit}"))
        if self.note:
            parts.append(self.note)
        return "; ".join(parts) or ("-" if ratio is None else "")

    def to_json(self) -> dict:
        return asdict(self) | {"ratio": self.ratio(), "verdict": self.verdict()}


def number(sample: Sample | None, unit: str) -> str:
    if sample is None:
        return "-"
    return f"{sample.median:.4g} {unit} [{sample.p10:.4g}, {sample.p90:.4g}]"


def table(rows: list[Row]) -> str:
    """Markdown, which is readable on a terminal too."""
    head = ["what", "ours: median [p10, p90]", "peer", "peer's", "ratio", "verdict"]
    lines = [[row.what, number(row.ours, row.unit), row.peer_name, number(row.peer, row.unit),
              f"{row.ratio():.2f}x" if row.ratio() else "-", row.verdict()] for row in rows]
    groups = [row.group for row in rows]
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]

    def text(line):
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |"

    result = []
    for i, line in enumerate(lines):
        if i == 0 or groups[i] != groups[i - 1]:
            result += ["", f"### {groups[i]}", "", text(head),
                       "|" + "|".join("-" * (width + 2) for width in widths) + "|"]
        result.append(text(line))
    return "\n".join(result).strip() + "\n"
