"""The table as pictures."""
import pathlib

from row import Row


def bars(rows: list[Row], title: str, file: pathlib.Path):
    """How many times faster than the peer, on a logarithmic scale: 1 is equal."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    rows = [row for row in rows if row.ratio()][::-1]
    figure, axes = pyplot.subplots(figsize=(8, 0.8 + 0.34 * len(rows)), layout="constrained")
    ratios = [row.ratio() for row in rows]
    axes.barh(range(len(rows)), ratios, log=True,
              color=["#2a7f62" if ratio >= (row.target or 1) else "#c8553d"
                     for row, ratio in zip(rows, ratios)])
    for i, (row, ratio) in enumerate(zip(rows, ratios)):
        axes.annotate(f" {ratio:.3g}x", (ratio, i), va="center", fontsize=8)
        if row.target:
            axes.plot([row.target] * 2, [i - 0.4, i + 0.4], color="black", linewidth=1.5)
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [row.what for row in rows], fontsize=8)
    axes.set_xlabel(f"times faster than {rows[0].peer_name} (black: wanted)", fontsize=8)
    axes.set_title(title, fontsize=10)
    axes.margins(x=0.15)
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)


def write(rows: list[Row], out: pathlib.Path) -> list[str]:
    files = []
    for group in dict.fromkeys(row.group for row in rows):
        of_group = [row for row in rows if row.group == group]
        if not any(row.ratio() for row in of_group):
            continue
        name = "".join(c if c.isalnum() else "_" for c in group.split(",")[0].lower()) + ".svg"
        bars(of_group, group, out / name)
        files.append(name)
    return files
